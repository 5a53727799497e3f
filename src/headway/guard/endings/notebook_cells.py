"""Notices when a cell of a notebook that trains ends with an exception.

IPython catches the exception and the process goes on, so no hook of the interpreter is called. The
run has failed only if no later cell continues it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headway.guard.endings.failure import describe_error, find_signal
from headway.guard.step_outcomes import StepCounter

_EVENTS = ("pre_run_cell", "post_run_cell")


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that made steps and raised.

    The exception itself is not kept: its frames keep the tensors of the step alive.
    """

    steps: int
    """Steps of the guard until then."""
    identity: int
    text: str
    signal: int | None
    """The signal that the exception stands for."""

    @property
    def error(self) -> BaseException | None:
        """The exception, while the shell still knows it."""
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        return last if id(last) == self.identity else None


class CellWatch:
    """Remembers the exception that ended the last cell with steps of a guard."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter
        self._began = counter.made
        """Steps that were made before the current cell."""
        self._failed: FailedCell | None = None
        self._events = _shell_events()
        self._each(lambda events, name: events.register(name, getattr(self, f"_{name}")))

    def close(self) -> None:
        """Stop watching."""
        self._each(lambda events, name: events.unregister(name, getattr(self, f"_{name}")))
        self._events = None

    @property
    def failed(self) -> FailedCell | None:
        """The cell whose exception ended the training; None if it went on or ended well."""
        known = self._failed
        return known if known is not None and known.steps == self._counter.made else None

    def _pre_run_cell(self, *_: Any) -> None:
        self._began = self._counter.made

    def _post_run_cell(self, result: Any = None) -> None:
        error = getattr(result, "error_in_exec", None)
        if isinstance(error, BaseException) and self._counter.made > self._began:
            self._failed = FailedCell(
                self._counter.made, id(error), describe_error(error), find_signal(error)
            )

    def _each(self, act: Callable[[Any, str], Any]) -> None:
        if self._events is not None:
            for name in _EVENTS:
                with suppress(Exception):  # another kind of shell
                    act(self._events, name)


def _shell_events() -> Any:
    """What an IPython shell tells about its cells; None outside of one."""
    ipython = sys.modules.get("IPython")
    try:
        return None if ipython is None else ipython.get_ipython().events
    except Exception:  # no shell
        return None
