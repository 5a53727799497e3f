"""When a script has run long enough: after a number of steps or of seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn


class EnoughSteps(BaseException):
    """Ends the script. Not an Exception, so that `except Exception` does not catch it."""


class StepLimits:
    """The limits of one run of a script; None stands for no limit."""

    def __init__(
        self, max_steps: int | None, max_seconds: float | None, warm_seconds: float | None
    ) -> None:
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._warm_seconds = warm_seconds
        self._warm_since: float | None = None
        self.enough = False
        """Whether the script was stopped."""
        self.name = ""
        """The limit that was reached, for people; empty if none was."""

    def reached(self, steps: int) -> bool:
        """Whether a limit is reached, now that an optimizer has made so many steps."""
        if self._max_steps is not None and steps >= self._max_steps:
            self.name = "--max-steps"
        elif self._warm_seconds is not None and self._is_time_over(self._warm_seconds):
            self.name = f"{self._warm_seconds:g} s of steps"
        return bool(self.name)

    def _is_time_over(self, budget_s: float) -> bool:
        """Whether the budget is spent; the first step, which warms up, does not count."""
        now = time.monotonic()
        if self._warm_since is None:
            self._warm_since = now
        return now - self._warm_since >= budget_s

    def stop(self, *_: Any) -> NoReturn:
        """Raise EnoughSteps in the script."""
        self.enough = True
        self.name = self.name or "--max-seconds"
        raise EnoughSteps

    @contextmanager
    def limit_time(self) -> Iterator[None]:
        """Within: the script is stopped after `max_seconds`, wherever it is."""
        before: Any = None
        if self._max_seconds is not None:
            with suppress(ValueError, AttributeError):  # not the main thread, or no such signal
                before = signal.signal(signal.SIGALRM, self.stop)
                signal.setitimer(signal.ITIMER_REAL, self._max_seconds)
        try:
            yield
        finally:
            if before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)


def children_seconds() -> float:
    """Processor time of finished child processes."""
    times = os.times()
    return times.children_user + times.children_system
