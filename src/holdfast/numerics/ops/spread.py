"""The standard deviation and the variance."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.ops import _kernels
from holdfast.numerics.ops._fused import again, can_fuse, must_be_plain
from holdfast.numerics.ops._look import holds, may_look, wide
from holdfast.numerics.ops._row_norm import largest_entry, looks_fine, power_of_two


def std(x: Tensor, dim: int = -1, keepdim: bool = False, *, correction: int = 1) -> Tensor:
    """The standard deviation along a dimension; 0 with gradient 0 where all are the same.

    Exact for every row that has a spread, at any scale (1e30, 1e-30). Bent in two places: rows
    with no more than `correction` elements, the empty one included, have spread 0 and gradient 0
    (torch says NaN); a deviation that does not fit the dtype is its largest finite number,
    with gradient 0.
    """
    count = x.shape[dim]
    if count <= correction:
        return (wide(x) * 0).nan_to_num(0, 0, 0).sum(dim, keepdim).to(x.dtype)
    if can_fuse(x):
        fused: Tensor = _FusedStd.apply(x, dim, keepdim, correction)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if may_look(x) and _sums_fit(inside.detach(), count):
        plain = torch.std(inside, dim=dim, correction=correction, keepdim=keepdim)
        level = partial(_all_the_same, inside.detach(), dim, keepdim)
        if looks_fine(plain.detach(), x.dtype, level):
            return plain.to(x.dtype)
    return _without_looking(x, dim, keepdim, correction)


def _without_looking(x: Tensor, dim: int, keepdim: bool, correction: int) -> Tensor:
    found: Tensor = _Std.apply(wide(x), dim, correction, torch.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
    found = found.to(x.dtype)
    return found if keepdim else found.squeeze(dim)


def var(x: Tensor, dim: int = -1, keepdim: bool = False, *, correction: int = 1) -> Tensor:
    """The variance along a dimension; 0 with gradient 0 for rows with too few elements.

    It has no singular point of its own: torch's, save that rows with no more than `correction`
    elements give 0 and not NaN, and that half dtypes are computed in float32. A variance too large
    for the dtype is infinite, as it is in torch: take `std`.
    """
    inside = wide(x)
    if x.shape[dim] <= correction:
        return std(x, dim, keepdim, correction=correction)
    return torch.var(inside, dim=dim, correction=correction, keepdim=keepdim).to(x.dtype)


def _sums_fit(x: Tensor, count: int) -> bool:
    """Whether the sum of a row, for its mean, cannot overflow."""
    low, high = torch.aminmax(x)
    return holds(torch.maximum(high, -low) <= torch.finfo(x.dtype).max / count)


def _all_the_same(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    return x.amax(dim, keepdim) == x.amin(dim, keepdim)


class _Std(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, correction: int, largest: float) -> Tensor:
        scale = power_of_two(x, dim)
        scaled = torch.std(x / scale, dim=dim, correction=correction, keepdim=True)
        return (scaled * scale).clamp_max(largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim, ctx.correction, ctx.largest = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, deviation = ctx.saved_tensors
        flat = (deviation == 0) | (deviation == ctx.largest)
        divisor = torch.where(flat, torch.inf, deviation)
        # At the size of one: neither a sum nor a difference of the largest numbers fits the dtype.
        scale = power_of_two(x.detach(), ctx.dim)
        scaled = x / scale
        centred = scaled - scaled.mean(ctx.dim, keepdim=True)
        share = gradient / (x.shape[ctx.dim] - ctx.correction)
        return centred / (divisor / scale) * share, None, None, None


class _FusedStd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool, correction: int) -> Tensor:
        ctx.plain = partial(_without_looking, dim=dim, keepdim=keepdim, correction=correction)
        ctx.freedom = float(x.shape[dim] - correction)
        ctx.largest = torch.finfo(x.dtype).max
        size = largest_entry(x, dim)
        scale = _kernels.SCALE[size.dtype]
        deviation, mean = torch.std_mean(
            _kernels.scaled(x, size, **scale), dim=dim, correction=correction, keepdim=True
        )
        ctx.save_for_backward(x, size, mean, deviation)
        found: Tensor = _kernels.unscaled(deviation, size, **scale, largest=ctx.largest)
        found = found.to(x.dtype)
        return found if keepdim else found.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *per_row = ctx.saved_tensors
        if must_be_plain(gradient):
            return *again(ctx.plain, gradient, x), None, None, None
        slope = _kernels.spread_backward(
            gradient.reshape(per_row[0].shape),
            x,
            *per_row,
            **_kernels.SCALE[per_row[0].dtype],
            largest=ctx.largest,
            freedom=ctx.freedom,
        )
        return slope, None, None, None
