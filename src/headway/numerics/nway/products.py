"""Batched matrix products; of half operands with single-precision results."""

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
        one = torch.ones(2, 16, 16, dtype=torch.bfloat16, device=device)
        torch.bmm(one, one, out_dtype=torch.float32)
    except (TypeError, RuntimeError):  # before torch 2.8
        return False
    return True


@cache
def _can_write_them_into(device: torch.device) -> bool:
    try:
        one = torch.ones(2, 16, 16, dtype=torch.bfloat16, device=device)
        torch.bmm(one, one, out_dtype=torch.float32, out=one.float())
    except (TypeError, RuntimeError):
        return False
    return True


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left @ right, (K, n, m) and (K, m, l); in float32 if they are halves."""
    if left.dtype in HALF:
        if out is None or _can_write_them_into(left.device):
            return torch.bmm(left, right, out_dtype=torch.float32, out=out)
        return out.copy_(torch.bmm(left, right, out_dtype=torch.float32))
    return torch.bmm(left, right, out=out)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right."""
    if left.dtype in HALF:
        total += product(left, right)
    else:
        total.baddbmm_(left, right)
