"""The many spellings of one torch function: `torch.softmax(x)`, `x.softmax()`, `F.softmax(x)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_HOMES = (torch, Tensor, F, torch.special, torch.linalg, torch._C._nn)


def spellings(*names: str) -> tuple[Callable[..., Any], ...]:
    """Every callable of these names, wherever torch keeps one."""
    found = []
    for name in names:
        for home in _HOMES:
            function = getattr(home, name, None)
            if callable(function) and function not in found:
                found.append(function)
    return tuple(found)
