"""Squared and Huber errors over latents, and the scale of both sides."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.numerics.losses._shared import Reduction, reduce, same_shape
from headway.numerics.ops._shared import wide


class Scales:
    """The sizes behind a loss over latents. Filled by the loss, read when you like.

        scales = Scales()
        loss = mse(prediction, latent, scales=scales)
        scales.read()  # {"prediction": 0.98, "target": 4.1, "error": 3.9, "ratio": 0.24}

    Root mean squares. A ratio far from 1 says that the prediction lives on another scale than its
    target. That is to be said, and mended where latents are made; a loss that quietly normalises
    them is a loss for something else. Filling waits for nothing; `read` waits for the device.
    """

    def __init__(self) -> None:
        self._last: Tensor | None = None

    @torch.no_grad()
    def fill(self, prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> None:
        """Take the sizes of a prediction and its target."""
        sides = (prediction, target, wide(prediction) - wide(target))
        squares = [reduce(wide(side).square(), "mean", mask) for side in sides]
        self._last = torch.stack(squares).sqrt()

    def read(self) -> dict[str, float]:
        """The sizes at the last loss; empty before the first."""
        if self._last is None:
            return {}
        prediction, target, error = self._last.tolist()
        ratio = prediction / target if target else float("inf") if prediction else 1.0
        return {"prediction": prediction, "target": target, "error": error, "ratio": ratio}


def mse(
    prediction: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    scales: Scales | None = None,
) -> Tensor:
    """The mean squared error, in float32 for half inputs, over the elements the mask keeps.

    Not bent and not normalised: an error whose square does not fit float32 (above 1.8e19) gives
    infinity, which is true. Shapes must be the same.
    """
    same_shape(prediction, target)
    if scales is not None:
        scales.fill(prediction, target, mask)
    ours, theirs = _kept(prediction, target, mask)
    return reduce(F.mse_loss(ours, theirs, reduction="none"), reduction, mask)


def huber(
    prediction: Tensor,
    target: Tensor,
    *,
    delta: float = 1.0,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    scales: Scales | None = None,
) -> Tensor:
    """The Huber error: quadratic up to delta, linear beyond; for latents with outliers.

    torch's own, in float32 for half inputs, over the elements the mask keeps. The gradient of an
    element is at most delta. Shapes must be the same.
    """
    same_shape(prediction, target)
    if scales is not None:
        scales.fill(prediction, target, mask)
    ours, theirs = _kept(prediction, target, mask)
    return reduce(F.huber_loss(ours, theirs, reduction="none", delta=delta), reduction, mask)


def _kept(prediction: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both, with zeros under the mask: NaN there must not come back as a gradient."""
    ours, theirs = wide(prediction), wide(target)
    if mask is None:
        return ours, theirs
    return torch.where(mask, ours, 0.0), torch.where(mask, theirs, 0.0)
