"""Yields the batches of a bad step to the user's loop once more.

The last resort where the loop body cannot be called: without its source, or if it yields. An error
in the body would end the training, so only remedies that cannot raise are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.rerun.protocol import CAN, NOT_APPLICABLE, Readiness, Rerun, RerunMoment
from headway.rerun.strategies.loop_body import find_loop_of


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
