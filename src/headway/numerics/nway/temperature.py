"""A learnable scale (inverse temperature) with a limit."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headway.numerics.nway.applied import applied


class _Within(torch.autograd.Function):
    """Clamped; beyond the limit only a gradient that leads back passes.

    A plain clamp passes none, and a scale that once went over the limit could never come back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, least: float, most: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = least, most
        return x.clamp(least, most)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        least, most = ctx.bounds
        # A step goes against the gradient.
        away = ((x > most) & (grad < 0)) | ((x < least) & (grad > 0))
        return grad.masked_fill(away, 0), None, None


class Temperature(nn.Module):
    """The scale exp(s) with a learnable s, never above `maximum` nor below `minimum`.

        temperature = Temperature()
        loss = nway_contrastive(features, scale=temperature())

    Like CLIP's it begins at 1/0.07 and ends at 100. Exclude `log_scale` from weight decay.
    """

    def __init__(
        self, initial: float = 1 / 0.07, *, maximum: float = 100.0, minimum: float = 1e-2
    ) -> None:
        super().__init__()
        if not 0 < minimum <= initial <= maximum < math.inf:
            raise ValueError(
                "0 < minimum <= initial <= maximum does not hold for "
                f"{minimum}, {initial}, {maximum}"
            )
        self.maximum, self.minimum = maximum, minimum
        self.log_scale = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        bounds = math.log(self.minimum), math.log(self.maximum)
        return applied(_Within, self.log_scale.float(), *bounds).exp()

    def extra_repr(self) -> str:
        return f"maximum={self.maximum}, minimum={self.minimum}"
