"""Matrix products of half operands with single-precision results."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


@cache
def can_multiply_halves(device: torch.device) -> bool:
    """Whether this device multiplies halves into float32 without rounding the result to half."""
    if device.type != "cuda":
        return False
    try:
        one = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
        torch.mm(one, one, out_dtype=torch.float32)
    except (TypeError, RuntimeError):  # before torch 2.8
        return False
    return True


def product(left: Tensor, right: Tensor, *, plus: Tensor | None = None) -> Tensor:
    """left @ right (+ a number for each column); in float32 if they are halves."""
    if left.dtype in HALF:
        out = torch.mm(left, right, out_dtype=torch.float32)
        return out if plus is None else out.add_(plus)
    return left @ right if plus is None else torch.addmm(plus, left, right)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right."""
    if left.dtype in HALF:
        total += torch.mm(left, right, out_dtype=torch.float32)
    else:
        total.addmm_(left, right)
