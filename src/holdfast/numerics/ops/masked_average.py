"""The mean of the elements that count."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.ops._look import floating, holds, may_look, wide


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
    mean, _, _ = _MaskedMean.apply(wide(x), mask.expand_as(x), dims)  # type: ignore[no-untyped-call]
    result: Tensor = mean.to(x.dtype)
    return result if keepdim else result.squeeze(dims)


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
        smaller = 2.0 ** -math.ceil(math.log2(max(x.numel(), 1)))
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
