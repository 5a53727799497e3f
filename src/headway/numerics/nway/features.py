"""What the loss accepts, and how it makes features safe to compute with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.numerics.nway.applied import applied
from headway.numerics.nway.fused import WIDEST_ROW, can_fuse, fused_unit, fused_unit_backward


def checked(features: Sequence[Tensor]) -> list[Tensor]:
    """The features as a list, or a ValueError that says what is wrong with them."""
    if isinstance(features, Tensor) and features.dim() == 3:
        features = features.unbind(0)
    found = list(features)
    if len(found) < 2:
        raise ValueError(f"a contrastive loss needs at least 2 modalities, not {len(found)}")
    first = found[0]
    for index, feature in enumerate(found):
        if feature.dim() != 2:
            raise ValueError(f"features[{index}] has shape {tuple(feature.shape)}, not (B, D)")
        if feature.shape != first.shape:
            raise ValueError(
                f"features[{index}] has shape {tuple(feature.shape)}, "
                f"features[0] has {tuple(first.shape)}: all must agree"
            )
        if not feature.is_floating_point():
            raise ValueError(f"features[{index}] is {feature.dtype}, not a floating point type")
        if feature.device != first.device:
            raise ValueError(
                f"features[{index}] is on {feature.device}, features[0] on {first.device}"
            )
    return found


class _Widen(torch.autograd.Function):
    """To the type we compute in; the gradient on its way back stays inside the narrow range.

    A row of tiny numbers has a huge gradient (1/norm). In fp16 that would become inf.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.narrow = x.dtype
        return x.to(dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(ctx.narrow).max
        return grad.clamp(-limit, limit).to(ctx.narrow), None


def compute_dtype(features: Sequence[Tensor]) -> torch.dtype:
    """float64 if any feature is; float32 otherwise, for half precision too."""
    if any(feature.dtype == torch.float64 for feature in features):
        return torch.float64
    return torch.float32


def widened(feature: Tensor, dtype: torch.dtype) -> Tensor:
    return applied(_Widen, feature, dtype)


class _Unit(torch.autograd.Function):
    """Rows of length one, in `dtype`. A zero row stays zero, and its gradient is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, fuse: bool) -> Tensor:
        ctx.narrow = x.dtype
        ctx.fuse = fuse and x.shape[-1] <= WIDEST_ROW and can_fuse(x, dtype)
        unit, length, largest = fused_unit(x) if ctx.fuse else _unit(x.to(dtype))
        ctx.save_for_backward(unit, length, largest)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        unit, length, largest = ctx.saved_tensors
        if ctx.fuse:
            return fused_unit_backward(grad, unit, length, largest, ctx.narrow), None, None
        across = torch.addcmul(grad, unit, (grad * unit).sum(-1, keepdim=True), value=-1)
        # Divided twice: the product of the two may not exist where both quotients do.
        across.div_(length).div_(largest)
        limit = torch.finfo(ctx.narrow).max
        return across.clamp_(-limit, limit).to(ctx.narrow), None, None


def _unit(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # The largest entry first: squares of 1e30 or 1e-30 do not exist in float32.
    largest = torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True)
    largest.clamp_min_(torch.finfo(x.dtype).tiny)
    unit = x / largest
    length = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
    # Over an infinite length an empty row is zero, and so is its gradient.
    length.masked_fill_(length == 0, torch.inf)
    unit /= length
    return unit, length, largest


def unit_rows(x: Tensor, dtype: torch.dtype | None = None, *, fuse: bool = False) -> Tensor:
    """Each row divided by its norm, for any scale of its entries; in `dtype`, if given."""
    return applied(_Unit, x, dtype or x.dtype, fuse)


def stacked(features: Sequence[Tensor], dtype: torch.dtype, *, unit: bool, fuse: bool) -> Tensor:
    """(N, B, D) in the type we compute in, with unit rows if asked for."""
    if any(feature.dtype != features[0].dtype for feature in features):
        # Each has its own range for gradients.
        features = [widened(feature, dtype) for feature in features]
    together = torch.stack(list(features))
    return unit_rows(together, dtype, fuse=fuse) if unit else widened(together, dtype)


class _Shrink(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Tensor) -> Tensor:
        return x / by

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def shrunk(x: Tensor, by: Tensor) -> Tensor:
    """x / by, whose gradient is *not* divided by it.

    Who uses the result divides the gradient of the score instead, together with the scale it is
    multiplied with: each alone may leave the range where the quotient does not.
    """
    return applied(_Shrink, x, by)


def common_scale(features: Tensor) -> Tensor:
    """A power of two near the largest entry: dividing by it is exact, and squares then exist."""
    largest = features.detach().abs().amax()
    exponent = torch.frexp(largest).exponent.clamp(-125, 126)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    # Zero has no scale. What is not finite is left to be seen in the loss.
    return torch.where((largest > 0) & largest.isfinite(), scale, torch.ones_like(largest))
