"""masked_mean, std and var with finite values and gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._kernels import can_fuse, differentiate_plain_form, needs_plain_backward
from headway.numerics.ops._shared import (
    can_read_condition,
    floating,
    is_half,
    is_known_true,
    wide,
    wide_dtype,
)
from headway.numerics.ops.row_norms import all_accurate, largest_entry, power_of_two

# The mean of the elements that count.


def masked_mean(
    x: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Tensor:
    """The mean over the elements where the mask is true; 0 with gradient 0 where there are none.

    Masked values are never read: NaN there reaches neither value nor gradient, as it
    would through `(x * mask).sum() / mask.sum()`. Exact wherever at least one element counts. The
    mask is boolean and is expanded to the shape of x. Counts above 2^24 elements a row are rounded.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"the mask is {mask.dtype}: masked_mean wants bool, true where it counts")
    x = floating(x)
    dims = tuple(range(x.dim())) if dim is None else dim
    mask = mask.expand_as(x)
    if can_fuse(x, mask):
        fused: Tensor = _FusedMaskedMean.apply(x, mask, dims, keepdim)  # type: ignore[no-untyped-call]
        return fused
    mean, _, _ = _MaskedMean.apply(wide(x), mask, dims)  # type: ignore[no-untyped-call]
    result: Tensor = mean.to(x.dtype)
    return result if keepdim else result.squeeze(dims)


def _smaller(x: Tensor) -> float:
    return float(2.0 ** -math.ceil(math.log2(max(x.numel(), 1))))


class _MaskedMean(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, mask: Tensor, dims: int | tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        kept = torch.where(mask, x, 0.0)
        weights = mask.to(x.dtype)
        count = weights.sum(dims, keepdim=True).clamp_min_(1)
        total = kept.sum(dims, keepdim=True)
        if can_read_condition(x) and is_known_true(total.isfinite().all()):
            return total / count, weights, count
        # A sum of finite numbers may overflow: then they are scaled down by a power of two first.
        smaller = _smaller(x)
        scaled = (kept * smaller).sum(dims, keepdim=True) / (count * smaller)
        return torch.where(total.isfinite(), total / count, scaled), weights, count

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, weights, count = output
        ctx.mark_non_differentiable(weights, count)
        ctx.save_for_backward(weights, count)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        weights, count = ctx.saved_tensors
        return weights * (gradient / count), None, None


class _FusedMaskedMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor, dims: int | tuple[int, ...], keepdim: bool
    ) -> Tensor:
        smaller = _smaller(x)
        add = partial(torch.sum, dim=dims, keepdim=True, dtype=wide_dtype(x))
        if x.dtype == torch.float16:  # whose sums all fit float32
            total = less = add(_kernels.kept(x, mask))
        else:
            total, less = map(add, _kernels.counted(x, mask, smaller=smaller))
        # A half type is widened as it is added up; a mask is copied to float32 first.
        count = add(mask.half() if wide_dtype(x) == torch.float32 else mask)
        ctx.save_for_backward(mask, count)
        mean: Tensor = _kernels.mean_counted(total, less, count, smaller=smaller)
        mean = mean.to(x.dtype)
        return mean if keepdim else mean.squeeze(dims)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        mask, count = ctx.saved_tensors
        per_row = gradient.reshape(count.shape)
        if needs_plain_backward(gradient):
            return mask.to(count.dtype) * (per_row / count.clamp_min(1)), None, None, None
        if is_half(gradient):  # rounded by row, and not in a pass of its own
            share = _kernels.share_counted(per_row, count).to(gradient.dtype)
            return _kernels.kept(share, mask), None, None, None
        return _kernels.counted_backward(per_row, mask, count), None, None, None


# The standard deviation and the variance.


def std(x: Tensor, dim: int = -1, keepdim: bool = False, *, correction: int = 1) -> Tensor:
    """The standard deviation along a dimension; 0 with gradient 0 if all values are equal.

    Exact for every row whose elements differ, at any scale (1e30, 1e-30). Two exceptions: rows
    with no more than `correction` elements, including empty ones, give 0 with gradient 0
    (torch gives NaN); a deviation that does not fit the dtype becomes its largest finite number,
    with gradient 0.
    """
    count = x.shape[dim]
    if count <= correction:
        return (wide(x) * 0).nan_to_num(0, 0, 0).sum(dim, keepdim).to(x.dtype)
    if can_fuse(x):
        fused: Tensor = _FusedStd.apply(x, dim, keepdim, correction)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if can_read_condition(x) and _sums_fit(inside.detach(), count):
        plain = torch.std(inside, dim=dim, correction=correction, keepdim=keepdim)
        level = partial(_all_the_same, inside.detach(), dim, keepdim)
        if all_accurate(plain.detach(), x.dtype, level):
            return plain.to(x.dtype)
    return _safe_std(x, dim, keepdim, correction)


def _safe_std(x: Tensor, dim: int, keepdim: bool, correction: int) -> Tensor:
    found: Tensor = _Std.apply(wide(x), dim, correction, torch.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
    found = found.to(x.dtype)
    return found if keepdim else found.squeeze(dim)


def var(x: Tensor, dim: int = -1, keepdim: bool = False, *, correction: int = 1) -> Tensor:
    """The variance along a dimension; 0 with gradient 0 for rows with too few elements.

    The same as torch's, except that rows with no more than `correction` elements give 0 instead of
    NaN, and that half dtypes are computed in float32. A variance too large for the dtype is
    infinite, as in torch: use `std` instead.
    """
    if x.shape[dim] <= correction:
        return std(x, dim, keepdim, correction=correction)
    if is_half(x) and can_fuse(x):
        fused: Tensor = _FusedHalfVar.apply(x, dim, keepdim, correction)  # type: ignore[no-untyped-call]
        return fused
    return _wide_var(x, dim, keepdim, correction)


def _wide_var(x: Tensor, dim: int, keepdim: bool, correction: int) -> Tensor:
    found: Tensor = torch.var(wide(x), dim=dim, correction=correction, keepdim=keepdim)
    return found.to(x.dtype)


def _sums_fit(x: Tensor, count: int) -> bool:
    """Whether the sum of a row, which its mean needs, cannot overflow."""
    low, high = torch.aminmax(x)
    return is_known_true(torch.maximum(high, -low) <= torch.finfo(x.dtype).max / count)


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
        # Scaled to about 1: sums and differences of the largest numbers do not fit the dtype.
        scale = power_of_two(x.detach(), ctx.dim)
        scaled = x / scale
        centred = scaled - scaled.mean(ctx.dim, keepdim=True)
        share = gradient / (x.shape[ctx.dim] - ctx.correction)
        return centred / (divisor / scale) * share, None, None, None


class _FusedStd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool, correction: int) -> Tensor:
        ctx.plain = partial(_safe_std, dim=dim, keepdim=keepdim, correction=correction)
        ctx.freedom = float(x.shape[dim] - correction)
        ctx.largest = torch.finfo(x.dtype).max
        size = largest_entry(x, dim)
        ctx.scale = scale = _kernels.SCALE[x.dtype]
        scaled = _kernels.scaled(x, size, **scale)
        if is_half(x):  # torch computes in float32, but would round the mean for the way back
            ctx.dim = dim
            deviation = torch.std(scaled, dim=dim, correction=correction, keepdim=True)
            ctx.save_for_backward(x, size, deviation, scaled)
        else:
            deviation, mean = torch.std_mean(scaled, dim=dim, correction=correction, keepdim=True)
            ctx.save_for_backward(x, size, deviation, mean)
        found: Tensor = _kernels.unscaled(deviation, size, **scale, largest=ctx.largest)
        found = found.to(x.dtype)
        return found if keepdim else found.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, size, deviation, more = ctx.saved_tensors
        if needs_plain_backward(gradient):
            return *differentiate_plain_form(ctx.plain, gradient, x), None, None, None
        per_row = gradient.reshape(size.shape)
        numbers = ctx.scale | {"largest": ctx.largest, "freedom": ctx.freedom}
        slope: Tensor
        if is_half(x):
            mean, rest = _mean_in_two(more, ctx.dim)
            slope = _kernels.spread_backward_in_half(
                per_row, more, size, mean, rest, deviation, **numbers
            )
        else:
            slope = _kernels.spread_backward(per_row, x, size, more, deviation, **numbers)
        return slope, None, None, None


class _FusedHalfVar(torch.autograd.Function):
    """torch's own, whose gradient would round the mean to the half type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool, correction: int) -> Tensor:
        ctx.dim, ctx.keepdim, ctx.correction = dim, keepdim, correction
        ctx.save_for_backward(x)
        return torch.var(x, dim=dim, correction=correction, keepdim=keepdim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        if needs_plain_backward(gradient):
            plain = partial(_wide_var, dim=ctx.dim, keepdim=ctx.keepdim, correction=ctx.correction)
            return *differentiate_plain_form(plain, gradient, x), None, None, None
        mean, rest = _mean_in_two(x, ctx.dim)
        slope: Tensor = _kernels.variance_backward_in_half(
            gradient.reshape(mean.shape),
            x,
            mean,
            rest,
            share=2.0 / (x.shape[ctx.dim] - ctx.correction),
        )
        return slope, None, None, None


def _mean_in_two(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The mean of rows of a half type: rounded to it, and what that leaves out."""
    exact = x.mean(dim, keepdim=True, dtype=torch.float32)
    mean = exact.to(x.dtype)
    return mean, torch.sub(exact, mean, out=torch.empty_like(mean))
