"""Delivers the batches of a bad step again to the framework or the loop that ran it.

The loop is the last resort where its body cannot be called: without its source, or if it yields. An
error in the body would end the training, so only remedies that cannot raise are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.rerun.protocol import CAN, LATER, NOT_APPLICABLE, Readiness, Rerun, RerunMoment
from headway.rerun.strategies.loop_body import find_loop_of
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


class RedeliverBatches(Rerun):
    """Lets the loop itself run the step."""

    may_raise = False

    def prepare(self) -> Readiness:
        case = self._case
        # With other ranks, a loop that gets more batches than the others may end too early.
        possible = case.moment is RerunMoment.NEXT_BATCH and case.host.rerun_group is None
        if possible and case.bad_step.batches and find_loop_of(case).again:
            return CAN
        return NOT_APPLICABLE

    def run(self, batches: Sequence[Any]) -> Sequence[Any]:
        return batches
