"""Keeps a bug in headway from stopping the training; a guard that has failed still votes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, TypeVar

from torch.optim import Optimizer

from headway.errors import RankLost, TrainingHalted
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.step_machine import StepMachine
from headway.output.notices import Notices, logger
from headway.torch_adapters.device_failure.device_memory import (
    is_host_out_of_memory,
    is_out_of_memory,
)
from headway.torch_adapters.device_failure.lost_device import (
    device_is_lost,
    is_device_error,
    mark_device_lost,
)
from headway.torch_adapters.runtime_state import keep_uncompiled


class FailedRank:
    """Votes in place of a guard that has failed.

    The other ranks wait for its vote at every step. It reports that it is off until all ranks have
    read that, and switch themselves off at the same step.
    """

    def __init__(self, machine: StepMachine) -> None:
        self._machine = machine

    def receive_outcome(self, step: OptimizerStep) -> None:
        """The other ranks read the outcome of the last step, and may re-run it."""
        step.expect_pending_rerun()

    def step(self, step: OptimizerStep) -> None:
        """An optimizer is about to step."""
        if step.vote is None:
            return
        if step.vote.hold_agreed:  # it failed after all had agreed to skip
            step.hold()
        step.vote.abstain(self._machine.counter.current)

    def scaler_steps(self, scaler: Any, optimizer: Optimizer) -> None:
        """A GradScaler is about to step an optimizer, or to skip it."""
        step = self._machine.optimizer_steps.get(id(optimizer))
        if step is not None and step.vote is not None:
            step.vote.step_begins()

    def scaler_stepped(self, scaler: Any, optimizer: Optimizer) -> None:
        """It has stepped or skipped; if it skipped, the other ranks wait."""
        step = self._machine.optimizer_steps.get(id(optimizer))
        if step is not None and step.vote is not None:
            step.vote.abstain(self._machine.counter.current)


T = TypeVar("T")


class FailSafe:
    """Runs our own code; an exception switches the guard off, and the training continues.

    `HEADWAY_STRICT=1` lets the exception through, for our own tests.
    """

    apart: ClassVar[AbstractContextManager[None] | None] = None
    """Entered around our own work, to hide its torch calls from a mode that sees every call."""

    def __init__(self, notices: Notices, give_up: Callable[[], None]) -> None:
        """`give_up` restores whatever an unfinished piece of work has changed."""
        self.tripped = False
        self._notices = notices
        self._give_up = give_up
        self._strict = os.environ.get("HEADWAY_STRICT") == "1"

    def __call__(self, work: Callable[..., T], *args: Any) -> T | None:
        """The result of the work; None after a failure."""
        if self.tripped:
            return None
        try:
            if self.apart is None:
                return work(*args)
            with self.apart:
                return work(*args)
        except (TrainingHalted, RankLost):
            raise
        except Exception as error:  # a bug of ours must not stop the user's run
            if is_device_error(error):  # the script's own kernel, which we happened to wait for
                mark_device_lost()
            if self._strict or device_is_lost() or _is_about_a_worker(error):
                raise
            self.tripped = True
            self._give_up()
            logger.debug("%s", traceback.format_exc())
            self._notices.once("shield", _say_failure(error))
            return None

    def spare(self, what: str, work: Callable[..., Any], *args: Any) -> bool:
        """Whether optional work succeeded; its failure leaves the guard on.

        It is also done after a failure of the guard.
        """
        try:
            with self.apart or nullcontext():
                work(*args)
        except (TrainingHalted, RankLost):
            raise
        except Exception as error:  # a bug of ours; the guard works without it
            if self._strict or is_device_error(error):
                raise
            logger.debug("%s", traceback.format_exc())
            self._notices.once(
                f"spare-{what}",
                f"{what} failed ({type(error).__name__}: {_first_line(error)}); "
                "everything else continues. Please report this as a bug",
            )
            return False
        return True

    def switch_off(self, reason: str) -> None:
        """Switch off because the guard of another rank has failed."""
        if not self.tripped:
            self.tripped = True
            self._give_up()
            self._notices.once("shield", reason)

    def around(self, observer: Any, instead: Any = None) -> Any:
        """The observer with every method protected.

        After a failure, `instead` receives the events that it has a method for.
        """
        return _FailSafeListener(self, observer, instead)


class _FailSafeListener:
    def __init__(self, protected: FailSafe, observer: Any, instead: Any) -> None:
        self._protected = protected
        self._observer = observer
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = partial(self._protected, getattr(self._observer, name))
        instead = getattr(self._instead, name, None)
        if instead is not None:
            method = partial(self._call_both, method, instead)
        method = keep_uncompiled(method)
        setattr(self, name, method)
        return method

    def _call_both(
        self, method: Callable[..., Any], instead: Callable[..., Any], *args: Any
    ) -> None:
        method(*args)
        if self._protected.tripped:
            instead(*args)


def _is_about_a_worker(error: Exception) -> bool:
    """Whether it is the user's: torch raises it wherever the main thread is when a worker dies."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")


def _say_failure(error: Exception) -> str:
    if is_out_of_memory(error):
        which = "host" if is_host_out_of_memory(error) else "device"
        return (
            f"headway ran out of {which} memory and switched itself off; training continues "
            "without a guard"
        )
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"headway itself failed ({type(error).__name__}: {_first_line(error)}, {where.name} line "
        f"{where.lineno}) and switched itself off; training continues without a guard. "
        "Please report this as a bug"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else "no message"
