"""Limits of a script: ends it after a number of steps, backward passes or seconds."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

MAX_PASSES = 1000
"""Backward passes without any optimizer step after which the script is stopped."""
PATIENCE = 4
"""How many times the budget of seconds a script without any step may take."""


class StepLimitReached(BaseException):
    """Ends the script. Not an Exception, so that `except Exception` does not catch it."""


class StepLimits:
    """The limits of one run of a script; None stands for no limit."""

    def __init__(
        self,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        warm_seconds: float | None = None,
    ) -> None:
        """StepLimitReached is raised after `max_steps` steps of one optimizer, after
        `max_seconds`, or at the first step that ends `warm_seconds` after the first one."""
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._warm_seconds = warm_seconds
        self._warm_since: float | None = None
        self.enough = False
        """Whether the script was stopped."""
        self.name = ""
        """The limit that was reached, for people; empty if none was."""

    def reached(self, steps: int) -> bool:
        """Whether a limit is reached, after this number of optimizer steps."""
        if self._max_steps is not None and steps >= self._max_steps:
            self.name = "--max-steps"
        elif self._warm_seconds is not None and self._is_time_over(self._warm_seconds):
            self.name = f"{self._warm_seconds:g} s of steps"
        return bool(self.name)

    def reached_without_step(self, passes: int) -> bool:
        """Whether a script that never steps has made enough backward passes."""
        budget = None if self._warm_seconds is None else PATIENCE * self._warm_seconds
        if self._max_steps is not None and passes >= max(self._max_steps, MAX_PASSES):
            self.name = f"{passes} backward passes without a step"
        elif budget is not None and self._is_time_over(budget):
            self.name = f"{budget:g} s of backward passes without a step"
        return bool(self.name)

    def _is_time_over(self, budget_s: float) -> bool:
        """Whether the budget is spent; the first step, which warms up, does not count."""
        now = time.monotonic()
        if self._warm_since is None:
            self._warm_since = now
        return now - self._warm_since >= budget_s

    def stop(self, *_: Any) -> NoReturn:
        """Raise StepLimitReached in the script."""
        self.enough = True
        self.name = self.name or "--max-seconds"
        raise StepLimitReached

    @contextmanager
    def limit_time(self) -> Iterator[None]:
        """Within: the script is stopped after `max_seconds`, wherever it is.

        Only the main thread can be stopped like that; elsewhere there is no such limit.
        """
        in_main = threading.current_thread() is threading.main_thread()
        if self._max_seconds is None or not in_main:
            yield
            return
        # Windows has no alarm signal: a thread interrupts the main one there, as Ctrl-C does.
        alarm = hasattr(signal, "setitimer")
        number = signal.SIGALRM if alarm else signal.SIGINT
        timer = threading.Timer(self._max_seconds, self._interrupt_main)
        timer.daemon = True
        before = signal.getsignal(number)
        signal.signal(number, self.stop if alarm else self._interruption(before))
        if alarm:
            signal.setitimer(signal.ITIMER_REAL, self._max_seconds)
        else:
            timer.start()
        try:
            yield
        finally:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)
            timer.cancel()
            signal.signal(number, before)

    def _interrupt_main(self) -> None:
        self.name = self.name or "--max-seconds"
        self.enough = True
        _thread.interrupt_main()

    def _interruption(self, before: Any) -> Any:
        """A handler of Ctrl-C that distinguishes the timer from the user."""

        def interrupted(number: int, frame: Any) -> None:
            if self.enough:
                raise StepLimitReached
            if not callable(before):
                raise KeyboardInterrupt
            before(number, frame)

        return interrupted


def children_seconds() -> float:
    """Processor time of finished child processes."""
    times = os.times()
    return times.children_user + times.children_system
