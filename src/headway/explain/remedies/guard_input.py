"""Adds an eps or a clamp at the user's own line, from outside.

The call is recognised above autograd, by the function and by the user's line it comes from, so the
backward is changed with it, as it would be by editing that line. Calls that torch makes itself on
behalf of the line are recognised too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.edits import edits_for
from headway.explain.remedies.edits.base import CallEdit
from headway.torch_adapters.frames import current_frame, is_internal_file, walk_callers
from headway.torch_adapters.modes import ReentrantFunctionMode, can_reenter, find_user_callback
from headway.torch_adapters.runtime_state import run_eagerly
from headway.torch_adapters.source import SourceLine, read_statement


class GuardInput(StepRemedy):
    key = "guard-input"
    safe = True

    def __init__(
        self, place: SourceLine, guards: Sequence[CallEdit], called_from: SourceLine | None = None
    ) -> None:
        self._place = place
        self._called_from = called_from
        self._guards = guards
        self._met: list[CallEdit] = []

    @classmethod
    def fitting(cls, birth: Origin) -> GuardInput | None:
        guards = edits_for(birth)
        if birth.place is None or not guards:
            return None
        return cls(birth.place, guards, birth.called_from)

    @property
    def edited(self) -> str | None:
        """The user's line as it should be; None where it cannot be written mechanically."""
        source = read_statement(self._place)
        texts = (guard.edited(source) for guard in self._met or self._guards)
        return next((text for text in texts if text is not None), None)

    @property
    def text(self) -> str:
        edited = self.edited
        guard = (self._met or self._guards)[0]
        words = guard.words if edited is None else f"write `{edited}`"
        called = "" if self._called_from is None else f" (called from {self._called_from})"
        return f"At {self._place}{called} {words}"

    @property
    def engaged(self) -> bool:
        return bool(self._met)

    @contextmanager
    def applied(self, scene: FailingStep) -> Iterator[None]:
        mode = _LineEditMode(self._place, self._guards)
        try:
            with run_eagerly(), mode:
                yield
        finally:
            self._met = [guard for guard in self._guards if guard in mode.met]


class _LineEditMode(ReentrantFunctionMode):
    """Guards the calls that come from one line."""

    def __init__(self, place: SourceLine, guards: Sequence[CallEdit]) -> None:
        super().__init__()
        self._file, self._line = os.path.abspath(place.file), place.line
        self._by_name = {name: guard for guard in reversed(guards) for name in guard.names}
        self.met: list[CallEdit] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _plain_name(func)
        guard = self._by_name.get(name)
        if (opened := find_user_callback(func)) is not None:
            return self.call_reentrant(opened, args, kwargs)
        if guard is None and not can_reenter(func):
            return func(*args, **kwargs)
        if not (guard is not None and guard.anywhere) and not self._is_from_the_line():
            return func(*args, **kwargs)
        if guard is None:
            return self.call_reentrant(func, args, kwargs)
        return self._guard(guard, name, func, args, kwargs)

    def _guard(
        self, guard: CallEdit, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            result = guard.run(name, func, args, kwargs)
        except _UNFIT:  # called in a way the guard does not know: then as the user called it
            return func(*args, **kwargs)
        self.met.append(guard)
        return result

    def _is_from_the_line(self) -> bool:
        callers = walk_callers(current_frame(2))
        frame = next((at for at in callers if not _is_machinery(at.f_code.co_filename)), None)
        return (
            frame is not None
            and frame.f_lineno == self._line
            and os.path.abspath(frame.f_code.co_filename) == self._file
        )


_is_machinery = cache(is_internal_file)

_UNFIT = (TypeError, ValueError, RuntimeError, LookupError, AttributeError)
"""Not every Exception: activation checkpointing ends its forwards by raising one of its own."""


def _plain_name(func: Any) -> str:
    name = str(getattr(func, "__name__", ""))
    for prefix in ("special_", "linalg_"):
        name = name.removeprefix(prefix)
    return name if name.endswith("__") else name.removesuffix("_")
