"""Calls of torch functions: all aliases of a function, and pausing a torch-function mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode

# The many spellings of one torch function: `torch.softmax(x)`, `x.softmax()`, `F.softmax(x)`.

_NAMESPACES = (torch, Tensor, F, torch.special, torch.linalg, torch._C._nn)


def find_aliases(*names: str) -> tuple[Callable[..., Any], ...]:
    """Every callable of these names, wherever torch keeps one."""
    found = []
    for name in names:
        for home in _NAMESPACES:
            function = getattr(home, name, None)
            if callable(function) and function not in found:
                found.append(function)
    return tuple(found)


current_transform: Callable[[], Any] = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None
)
"""The transform that runs now; another torch may not tell."""


def forward_hooks_with_kwargs() -> dict[int, bool]:
    found: dict[int, bool] = getattr(modules, "_global_forward_hooks_with_kwargs", {})
    return found


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
