"""Calling an autograd Function, with a type."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def applied(function: Any, *args: Any) -> Tensor:
    """`function.apply(*args)`; torch leaves it without annotations."""
    out: Tensor = function.apply(*args)
    return out
