"""Function and dispatch modes: the base classes, and what switches modes off for a while."""

from __future__ import annotations

from functools import cache
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# A torch function mode that stays active inside torch's own Python functions.

# A function mode is switched off while it handles a call. For a function written in Python, such
# as `F.normalize`, that hides everything it calls. Called again with the mode on, it would only
# hand itself to the mode again. So a copy of it is called that does not ask.

_CALLS_BACK = {"backward", "grad"}


def find_user_callback(func: Any) -> FunctionType | None:
    """torch's function itself, if it runs code of the user's: hooks, and the forwards that
    activation checkpointing recomputes in the backward. Who watches it may stand in its place."""
    if getattr(func, "__name__", "") not in _CALLS_BACK:
        return None
    func = unwrap(func)
    return func if can_reenter(func) else None


@cache
def can_reenter(func: Any) -> bool:
    return isinstance(func, FunctionType) and bool(_override_checks(func))


def _override_checks(func: FunctionType) -> list[str]:
    return [name for name in func.__globals__ if name.startswith("has_torch_function")]


class ReentrantFunctionMode(TorchFunctionMode):
    """A function mode that can stay on inside of a function it handles."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[FunctionType] = []

    def call_reentrant(
        self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call it so that this mode sees what it calls."""
        if func in self._open:  # such as `unflatten`, which asks for its C twin by its own name
            return func(*args, **kwargs)
        self._open.append(func)
        try:
            with self:
                return _without_override_check(func)(*args, **kwargs)
        finally:
            self._open.remove(func)


@cache
def _without_override_check(func: FunctionType) -> FunctionType:
    """The function, without its question whether somebody overrides it."""
    within = {**func.__globals__, **dict.fromkeys(_override_checks(func), _no_override)}
    copy = FunctionType(func.__code__, within, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _no_override(*values: Any) -> bool:
    return False


class ModePause:
    """Takes the mode off while our own code works, which would else be heard call by call.

    Only where it lies on top of the stack: another mode in front of it is left alone.
    """

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._taken: list[bool] = []

    def __enter__(self) -> None:
        depth = torch._C._len_torch_function_stack()
        ours = depth > 0 and torch._C._get_function_stack_at(depth - 1) is self._mode
        self._taken.append(ours)
        if ours:
            torch._C._pop_torch_function_stack()

    def __exit__(self, *_: object) -> None:
        if self._taken.pop():
            torch._C._push_on_torch_function_stack(self._mode)
