"""The standard deviation and the variance."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.ops._look import holds, may_look, wide
from holdfast.numerics.ops._row_norm import looks_fine, power_of_two


def std(x: Tensor, dim: int = -1, keepdim: bool = False, *, correction: int = 1) -> Tensor:
    """The standard deviation along a dimension; 0 with gradient 0 where all are the same.

    Exact for every row that has a spread, at any scale (1e30, 1e-30). Bent in two places: rows
    with no more than `correction` elements, the empty one included, have spread 0 and gradient 0
    (torch says NaN); a deviation that does not fit the dtype is its largest finite number,
    with gradient 0.
    """
    inside = wide(x)
    count = x.shape[dim]
    if count <= correction:
        return (inside * 0).nan_to_num(0, 0, 0).sum(dim, keepdim).to(x.dtype)
    if may_look(x) and _sums_fit(inside.detach(), count):
        plain = torch.std(inside, dim=dim, correction=correction, keepdim=keepdim)
        level = partial(_all_the_same, inside.detach(), dim, keepdim)
        if looks_fine(plain.detach(), x.dtype, level):
            return plain.to(x.dtype)
    found: Tensor = _Std.apply(inside, dim, correction, torch.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
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
