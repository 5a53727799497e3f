"""Reductions whose mean over nothing is 0."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def reduce(values: Tensor, reduction: Reduction, mask: Tensor | None = None) -> Tensor:
    """The values under a reduction; those where the mask is false count for nothing."""
    if mask is not None:
        mask = mask.expand_as(values)
        values = torch.where(mask, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        if mask is None:
            return values.mean() if values.numel() else values.sum()
        return values.sum() / mask.sum().clamp_min(1)
    raise ValueError(f"reduction is {reduction!r}: it is one of 'mean', 'sum' and 'none'")


def same_shape(prediction: Tensor, target: Tensor) -> None:
    """Broadcasting (N,) against (N, 1) gives N x N differences and no error: refuse it."""
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction has shape {tuple(prediction.shape)} and target {tuple(target.shape)}: "
            "they must be the same"
        )
