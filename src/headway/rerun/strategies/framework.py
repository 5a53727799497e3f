"""Runs a step again by calling the framework that ran it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.rerun.protocol import CAN, LATER, NOT_APPLICABLE, Readiness, Rerun, RerunMoment
from headway.torch_adapters.runtime_state import compiled_code_runs


class FrameworkRerun(Rerun):
    """Calls `run(batch)` of an adapter for each batch of the step."""

    def prepare(self) -> Readiness:
        bad = self._case.bad_step
        if not bad.framework_runs:
            return NOT_APPLICABLE
        if self._case.moment is RerunMoment.AFTER_STEP:
            return LATER  # the framework is in the middle of its step
        keep = getattr(bad.batches[0].run, "keep", None)
        if keep is not None:
            self._undo = keep(self._case.host.models, tensors=compiled_code_runs())
        return CAN

    def run(self, batches: Sequence[Any]) -> tuple[()]:
        for kept, batch in zip(self._case.bad_step.batches, batches, strict=True):
            assert kept.run is not None
            kept.run(batch)
        return ()
