"""The Euclidean norm."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import again, can_fuse, must_be_plain
from headway.numerics.ops._look import may_look, wide
from headway.numerics.ops._row_norm import fused_row_norm, looks_fine, row_norm


def norm(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """The Euclidean norm along a dimension; 0 with gradient 0 for a row of zeros.

    Exact for every row, also where the squares overflow or vanish (1e30, 1e-30). Bent in one place:
    a norm that does not fit the dtype is its largest finite number, with gradient 0. NaN and
    infinity stay.
    """
    if can_fuse(x):
        fused: Tensor = _FusedNorm.apply(x, dim, keepdim)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if may_look(x):
        plain: Tensor = torch.linalg.vector_norm(inside, dim=dim, keepdim=keepdim)
        zero = partial(_all_zero, inside.detach(), dim, keepdim)
        if looks_fine(plain.detach(), x.dtype, zero):
            return plain.to(x.dtype)
    return _without_looking(x, dim, keepdim)


def _without_looking(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    length: Tensor = _Norm.apply(wide(x), dim, torch.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
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


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        ctx.dim, ctx.keepdim, ctx.largest = dim, keepdim, torch.finfo(x.dtype).max
        length = fused_row_norm(x, dim, ctx.largest)
        value = length.to(x.dtype)
        # Where its exponents suffice, the half type: beside float32 the gradient would be wide.
        ctx.save_for_backward(x, value if x.dtype == torch.bfloat16 else length)
        return value if keepdim else value.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, length = ctx.saved_tensors
        if must_be_plain(gradient):
            plain = partial(_without_looking, dim=ctx.dim, keepdim=ctx.keepdim)
            return *again(plain, gradient, x), None, None
        per_row = gradient.reshape(length.shape)
        if x.dtype == torch.float16:
            slope = _kernels.per_length(per_row, length, largest=ctx.largest)
            return torch.mul(x, slope, out=torch.empty_like(x)), None, None
        return _kernels.norm_backward(per_row, x, length, largest=ctx.largest), None, None
