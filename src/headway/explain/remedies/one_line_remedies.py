"""Remedies that change one setting, or guard the input of one op."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from headway.core.findings import SourceEdit
from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.edits import edits_for
from headway.explain.remedies.edits.call_edits import CallEdit
from headway.torch_adapters.autocast_regions import AutocastSetting, change_regions, changed_regions
from headway.torch_adapters.frames import (
    Location,
    current_frame,
    is_installed_file,
    is_internal_file,
    walk_callers,
)
from headway.torch_adapters.modes import ReentrantFunctionMode, can_reenter, find_user_callback
from headway.torch_adapters.runtime_state import run_eagerly
from headway.torch_adapters.source import SourceFile, read_statement

# Adds an eps or a clamp at the user's line, from outside. The call is intercepted above autograd,
# by its function and the user's line, so that backward changes too, as it would with an edit of
# that line. Calls that torch makes on behalf of the line are intercepted too.


class GuardInput(StepRemedy):
    key = "guard-input"
    safe = True

    def __init__(
        self, place: Location, guards: Sequence[CallEdit], called_from: Location | None = None
    ) -> None:
        self._place = place
        self._called_from = called_from
        self._guards = guards
        self._met: list[CallEdit] = []

    @classmethod
    def fitting(cls, origin: Origin) -> GuardInput | None:
        guards = edits_for(origin)
        if origin.place is None or not guards:
            return None
        return cls(origin.place, guards, origin.called_from)

    @property
    def edited(self) -> str | None:
        """The user's line with the fix; None if it cannot be rewritten automatically."""
        source = read_statement(self._place)
        texts = (guard.edited(source) for guard in self._met or self._guards)
        return next((text for text in texts if text is not None), None)

    @property
    def edits(self) -> tuple[SourceEdit, ...]:
        """The same in the user's file; empty if the file is a library's, or has changed."""
        if is_installed_file(self._place.file) or is_internal_file(self._place.file):
            return ()
        file = SourceFile.read(self._place.file)
        if file is None or self._place.source.strip() not in file.line(self._place.line):
            return ()
        statement = file.statement_at(self._place.line)
        for guard in self._met or self._guards:
            found = None if statement is None else guard.replacements(statement)
            if found is not None:
                return tuple(file.edit(*span) for span in found)
        return ()

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
    def applied(self, failing_step: FailingStep) -> Iterator[None]:
        mode = _LineEditMode(self._place, self._guards)
        try:
            with run_eagerly(), mode:
                yield
        finally:
            self._met = [guard for guard in self._guards if guard in mode.met]


class _LineEditMode(ReentrantFunctionMode):
    """Guards the calls that come from one line."""

    def __init__(self, place: Location, guards: Sequence[CallEdit]) -> None:
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
        except _UNFIT:  # an unknown form of the call: run it as the user wrote it
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


# Remedies that switch a mode of torch: bfloat16 autocast, deterministic algorithms, eager mode,
# math attention.


class Bf16(StepRemedy):
    """Every autocast region that would cast to float16 casts to bfloat16."""

    key = "bf16"
    text = "Autocast to bfloat16 instead of float16: `torch.autocast(..., dtype=torch.bfloat16)`"
    keepable = True

    def __init__(self) -> None:
        self._changed = 0

    @property
    def engaged(self) -> bool:
        return self._changed > 0

    @contextmanager
    def applied(self, failing_step: FailingStep) -> Iterator[None]:
        self._changed = 0
        with changed_regions(self._to_bfloat16):
            yield

    def keep(self, failing_step: FailingStep) -> Callable[[], None]:
        return change_regions(self._to_bfloat16)

    def _to_bfloat16(self, casting: AutocastSetting) -> AutocastSetting:
        if not casting.enabled or casting.dtype is not torch.float16:
            return casting
        self._changed += 1
        return casting._replace(dtype=torch.bfloat16)


class Deterministic(StepRemedy):
    key = "deterministic"
    text = "Call `torch.use_deterministic_algorithms(True, warn_only=True)` before training"
    safe = True

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not

    @contextmanager
    def applied(self, failing_step: FailingStep) -> Iterator[None]:
        on = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(on, warn_only=warn_only)


class Eager(StepRemedy):
    key = "eager"
    text = 'Run without torch.compile, or call `torch.compiler.set_stance("force_eager")`'
    safe = True

    @contextmanager
    def applied(self, failing_step: FailingStep) -> Iterator[None]:
        with torch.compiler.set_stance("force_eager"):
            yield


class MathAttention(StepRemedy):
    """Attention without a fused kernel. Not safe: it needs memory for all scores."""

    key = "math-attention"

    def __init__(self, origin: Origin) -> None:
        self._where = "" if origin.place is None else f" around {origin.place}"

    @classmethod
    def fitting(cls, origin: Origin) -> MathAttention | None:
        return cls(origin) if "scaled_dot_product" in origin.op else None

    @property
    def text(self) -> str:
        return f"Use `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`{self._where}"

    @contextmanager
    def applied(self, failing_step: FailingStep) -> Iterator[None]:
        with sdpa_kernel([SDPBackend.MATH]):
            yield
