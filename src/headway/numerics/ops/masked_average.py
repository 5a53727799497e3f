"""The mean of the elements that count."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import can_fuse, must_be_plain
from headway.numerics.ops._look import floating, holds, is_half, may_look, wide, wide_dtype


def masked_mean(
    x: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Tensor:
    """The mean over the elements where the mask is true; 0 with gradient 0 where there are none.

    What lies under the mask is never touched: NaN there reaches neither value nor gradient, as it
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
        if may_look(x) and holds(total.isfinite().all()):
            return total / count, weights, count
        # The sum of numbers that fit may not: then it is taken of as many times smaller ones.
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
        if must_be_plain(gradient):
            return mask.to(count.dtype) * (per_row / count.clamp_min(1)), None, None, None
        if is_half(gradient):  # rounded by row, and not in a pass of its own
            share = _kernels.share_counted(per_row, count).to(gradient.dtype)
            return _kernels.kept(share, mask), None, None, None
        return _kernels.counted_backward(per_row, mask, count), None, None, None
