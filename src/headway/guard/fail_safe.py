"""Keeps a defect of headway from stopping the training, and keeps voting with the other ranks after
one.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, TypeVar

from torch.optim import Optimizer

from headway.errors import RankLost, TrainingHalted
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.step_machine import StepMachine
from headway.output.notices import Notices, logger

# What a guard that has failed still owes the other ranks.

# They wait for its say at every step. So it goes on to say that it is off, until all have heard it
# and switch themselves off at the same step.


class FailedRank:
    """Votes in place of a guard that has failed."""

    def __init__(self, machine: StepMachine) -> None:
        self._machine = machine

    def hear(self, watch: OptimizerStep) -> None:
        """The others learn what became of the step before, and may ask about it."""
        watch.foresee_unheard()

    def step(self, watch: OptimizerStep) -> None:
        """An optimizer is about to step."""
        if watch.vote is None:
            return
        if watch.vote.hold_agreed:  # it failed after all had agreed, so the others hold back
            watch.hold()
        watch.vote.abstain(self._machine.counter.current)

    def scaler_steps(self, scaler: Any, optimizer: Optimizer) -> None:
        """A scaler is about to step an optimizer, or to skip it."""
        watch = self._machine.optimizer_steps.get(id(optimizer))
        if watch is not None and watch.vote is not None:
            watch.vote.step_begins()

    def scaler_stepped(self, scaler: Any, optimizer: Optimizer) -> None:
        """It did one of the two; if it skipped, the others wait."""
        watch = self._machine.optimizer_steps.get(id(optimizer))
        if watch is not None and watch.vote is not None:
            watch.vote.abstain(self._machine.counter.current)


# Keeping a defect of ours from killing the user's training.

# Whatever fails inside the guard, the guard switches itself off, says so once, and the training
# goes on as if it had never been there. `HEADWAY_STRICT=1` lets the exception through: for our own
# tests.

T = TypeVar("T")


class FailSafe:
    """Runs our own code on behalf of the user's."""

    apart: ClassVar[AbstractContextManager[None] | None] = None
    """What our own work is done in: a check that hears every call of torch need not hear ours."""

    def __init__(self, notices: Notices, give_up: Callable[[], None]) -> None:
        """`give_up` puts back whatever a half-done piece of work may have changed."""
        self.tripped = False
        self._notices = notices
        self._give_up = give_up
        self._strict = os.environ.get("HEADWAY_STRICT") == "1"

    def __call__(self, work: Callable[..., T], *args: Any) -> T | None:
        """The result of the work; None once anything has failed."""
        if self.tripped:
            return None
        try:
            if self.apart is None:
                return work(*args)
            with self.apart:
                return work(*args)
        except (TrainingHalted, RankLost):
            raise
        except Exception as error:  # ours, whatever it is: the user's run must not pay for it
            if self._strict:
                raise
            self.tripped = True
            self._give_up()
            logger.debug("%s", traceback.format_exc())
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._notices.once(
                "shield",
                f"headway itself failed ({type(error).__name__}: {_first_line(error)}, "
                f"{where.name} line {where.lineno}) and switched itself off; "
                "training goes on unwatched. Please report this as a defect",
            )
            return None

    def spare(self, what: str, work: Callable[..., Any], *args: Any) -> bool:
        """Whether work was done that the run can do without: failing, only it is given up."""
        try:
            work(*args)
        except (TrainingHalted, RankLost):
            raise
        except Exception as error:  # ours; the guard goes on without it
            if self._strict:
                raise
            logger.debug("%s", traceback.format_exc())
            self._notices.once(
                f"spare-{what}",
                f"{what} failed ({type(error).__name__}: {_first_line(error)}) and is given up; "
                "everything else goes on. Please report this as a defect",
            )
            return False
        return True

    def switch_off(self, reason: str) -> None:
        """Trip without an error of our own: another rank's guard has failed."""
        if not self.tripped:
            self.tripped = True
            self._give_up()
            self._notices.once("shield", reason)

    def around(self, observer: Any, instead: Any = None) -> Any:
        """The observer with every method under the shield.

        Once tripped, `instead` is told of what it has a method for.
        """
        return _FailSafeListener(self, observer, instead)


class _FailSafeListener:
    def __init__(self, shield: FailSafe, observer: Any, instead: Any) -> None:
        self._shield = shield
        self._observer = observer
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        method = partial(self._shield, getattr(self._observer, name))
        instead = getattr(self._instead, name, None)
        if instead is not None:
            method = partial(self._tell, method, instead)
        setattr(self, name, method)
        return method

    def _tell(self, method: Callable[..., Any], instead: Callable[..., Any], *args: Any) -> None:
        method(*args)
        if self._shield.tripped:
            instead(*args)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else "no message"
