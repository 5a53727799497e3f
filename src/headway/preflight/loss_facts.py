"""What can be said about the tensors that meet in a loss: shapes, ranges, what they look like."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

MOST_ROWS = 256
"""Rows looked at: what is true of a loss's input is true of every row."""
MOST_ELEMENTS = 1 << 20


def dtype_of(tensor: Tensor) -> str:
    """`float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def described(tensor: Tensor) -> dict[str, Any]:
    """Shape, dtype and range."""
    facts: dict[str, Any] = {"shape": list(tensor.shape), "dtype": dtype_of(tensor)}
    values = sample(tensor)
    if values.numel():
        low, high = (float(bound) for bound in values.aminmax())
        if math.isfinite(low) and math.isfinite(high):
            facts |= {"low": low, "high": high}
    return facts


def sample(tensor: Tensor) -> Tensor:
    """The values of a tensor as float64; of a huge one, some of every part."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() > MOST_ELEMENTS:
        flat = flat[:: flat.numel() // MOST_ELEMENTS + 1]
    return flat.to(torch.float64)


def rows(tensor: Tensor, axis: int) -> Tensor:
    """Rows along an axis, at most `MOST_ROWS`, spread over the tensor."""
    if tensor.ndim == 0:
        return tensor.detach().reshape(1, 1).to(torch.float64)
    flat = tensor.detach().movedim(axis, -1)
    flat = flat.reshape(-1, flat.shape[-1])
    if flat.shape[0] > MOST_ROWS:
        flat = flat[:: flat.shape[0] // MOST_ROWS + 1]
    return flat.to(torch.float64)


def tolerance(tensor: Tensor) -> float:
    """How far a sum of probabilities may be from 1 in this precision."""
    return 1e-3 if tensor.dtype in (torch.float32, torch.float64) else 2e-2


def sums_to_one(tensor: Tensor, axis: int) -> bool:
    """Whether every row is a distribution over at least two classes."""
    found = rows(tensor, axis)
    if found.shape[-1] < 2 or not found.numel() or bool((found < -1e-6).any()):
        return False
    return bool(((found.sum(-1) - 1).abs() < tolerance(tensor)).all())


def logs_of_one(tensor: Tensor, axis: int) -> bool:
    """Whether every row is the logarithm of a distribution."""
    found = rows(tensor, axis)
    if not found.numel():
        return False
    return bool((found.logsumexp(-1).abs() < max(tolerance(tensor), 1e-2)).all())


def odd_rows(tensor: Tensor, axis: int) -> float:
    """The share of rows that are neither a distribution nor empty."""
    found = rows(tensor, axis)
    if not found.numel():
        return 0.0
    total = found.sum(-1)
    odd = ((total - 1).abs() > 0.02) & (total.abs() > 1e-6)
    return float(odd.double().mean())


def share_outside(tensor: Tensor, low: float, high: float, *, masked: bool = False) -> float:
    """The share of values that lie outside a range by more than a hair.

    Where a mask may follow (`masked`), one single value outside among others inside stands for
    "unknown", and none is.
    """
    values = sample(tensor)
    values = values[values.isfinite()]
    if not values.numel():
        return 0.0
    slack = 0.01 * (high - low) if math.isfinite(high - low) else 1e-3
    outside = (values < low - slack) | (values > high + slack)
    if masked and bool(outside.any()):
        stands_for_unknown = values[outside].unique().numel() == 1
        if stands_for_unknown and values.unique().numel() > 2:
            return 0.0
    return float(outside.double().mean())


def broadcast_size(one: Tensor, other: Tensor) -> int | None:
    """How many numbers come out where two shapes meet; None where they cannot."""
    try:
        return math.prod(int(size) for size in torch.broadcast_shapes(one.shape, other.shape))
    except RuntimeError:
        return None


def crossed(one: Tensor, other: Tensor) -> bool:
    """(N, 1) meets (N): each prediction is compared with every target.

    Pairs on purpose are written with as many axes on both sides: (B, N, 1) against (B, 1, N).
    """
    if one.shape == other.shape:
        return False
    if tuple(d for d in one.shape if d != 1) != tuple(d for d in other.shape if d != 1):
        return False
    if one.ndim == other.ndim and one.ndim > 2:
        return False
    size = broadcast_size(one, other)
    return size is not None and size > max(one.numel(), other.numel())
