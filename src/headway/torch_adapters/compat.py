"""Private parts of torch under plain names, each with a fall-back for a torch that lacks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules import module as modules

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
