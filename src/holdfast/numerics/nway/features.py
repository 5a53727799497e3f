"""What the loss accepts, and how it makes features safe to compute with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.nway.applied import applied


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
    """Rows of length one. A zero row stays zero, and its gradient is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        tiny = torch.finfo(x.dtype).tiny
        # The largest entry first: squares of 1e30 or 1e-30 do not exist in float32.
        largest = x.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
        unit = x / largest
        length = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
        empty = length == 0
        length = length.masked_fill(empty, 1)
        unit /= length
        ctx.save_for_backward(unit, length, largest, empty)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        unit, length, largest, empty = ctx.saved_tensors
        across = torch.addcmul(grad, unit, (grad * unit).sum(1, keepdim=True), value=-1)
        # Divided twice: the product of the two may not exist where both quotients do.
        out: Tensor = (across / length / largest).masked_fill(empty, 0)
        return out


def unit_rows(x: Tensor) -> Tensor:
    """Each row divided by its norm, for any scale of its entries."""
    return applied(_Unit, x)


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


def common_scale(features: Sequence[Tensor]) -> Tensor:
    """A power of two near the largest entry: dividing by it is exact, and squares then exist."""
    largest = torch.stack([feature.detach().abs().amax() for feature in features]).amax()
    exponent = torch.frexp(largest).exponent.clamp(-125, 126)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    # Zero has no scale. What is not finite is left to be seen in the loss.
    return torch.where((largest > 0) & largest.isfinite(), scale, torch.ones_like(largest))
