"""What a guard that has failed still owes the other ranks.

They wait for its say at every step. So it goes on to say that it is off, until all have heard it
and switch themselves off at the same step.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from headway.live.session import Session
from headway.live.watch import OptimizerWatch


class Duty:
    """Stands in for a session whose guard has failed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def hear(self, watch: OptimizerWatch) -> None:
        """The others learn what became of the step before, and may ask about it."""
        watch.foresee()

    def step(self, watch: OptimizerWatch) -> None:
        """An optimizer is about to step."""
        if watch.ballot is None:
            return
        if watch.ballot.hold_agreed:  # it failed after all had agreed, so the others hold back
            watch.hold()
        watch.ballot.abstain(self._session.step)

    def scaler_steps(self, scaler: Any, optimizer: Optimizer) -> None:
        """A scaler is about to step an optimizer, or to skip it."""
        watch = self._session.watches.get(id(optimizer))
        if watch is not None and watch.ballot is not None:
            watch.ballot.step_begins()

    def scaler_stepped(self, scaler: Any, optimizer: Optimizer) -> None:
        """It did one of the two; if it skipped, the others wait."""
        watch = self._session.watches.get(id(optimizer))
        if watch is not None and watch.ballot is not None:
            watch.ballot.abstain(self._session.step)
