"""The mean of the elements that count."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.numerics.ops._look import wide


def masked_mean(
    x: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None, keepdim: bool = False
) -> Tensor:
    """The mean over the elements where the mask is true; 0 with gradient 0 where there are none.

    What lies under the mask is never touched: NaN there reaches neither value nor gradient, as it
    would through `(x * mask).sum() / mask.sum()`. Exact wherever at least one element counts. The
    mask is boolean and broadcasts against x; the count is that of the elements of x it keeps.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"the mask is {mask.dtype}: masked_mean wants bool, true where it counts")
    inside = wide(x)
    kept = torch.where(mask, inside, 0.0)
    dims = tuple(range(kept.dim())) if dim is None else dim
    count = mask.expand_as(kept).sum(dims, keepdim=keepdim).clamp_min(1).to(inside.dtype)
    return (kept.sum(dims, keepdim=keepdim) / count).to(x.dtype)
