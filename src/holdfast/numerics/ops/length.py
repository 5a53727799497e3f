"""The Euclidean norm."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.ops._look import may_look, wide
from holdfast.numerics.ops._row_norm import looks_fine, row_norm


def norm(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """The Euclidean norm along a dimension; 0 with gradient 0 for a row of zeros.

    Exact for every row, also where the squares overflow or vanish (1e30, 1e-30). Bent in one place:
    a norm that does not fit the dtype is its largest finite number, with gradient 0. NaN and
    infinity stay.
    """
    inside = wide(x)
    if may_look(x):
        plain: Tensor = torch.linalg.vector_norm(inside, dim=dim, keepdim=keepdim)
        zero = partial(_all_zero, inside.detach(), dim, keepdim)
        if looks_fine(plain.detach(), x.dtype, zero):
            return plain.to(x.dtype)
    length: Tensor = _Norm.apply(inside, dim, torch.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
    length = length.to(x.dtype)
    return length if keepdim else length.squeeze(dim)


def _all_zero(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    if x.shape[dim] == 0:
        return x.sum(dim, keepdim) == 0
    return (x.amax(dim, keepdim) == 0) & (x.amin(dim, keepdim) == 0)


class _Norm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, largest: float) -> Tensor:
        length = row_norm(x, dim)
        if x.shape[dim] == 0:
            return length
        infinite = x.amax(dim, keepdim=True).isinf() | x.amin(dim, keepdim=True).isinf()
        return torch.where(infinite, length, length.clamp_max(largest))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, _, ctx.largest = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, length = ctx.saved_tensors
        divisor = torch.where((length == 0) | (length == ctx.largest), torch.inf, length)
        return x / divisor * gradient, None, None
