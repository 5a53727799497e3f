"""Square roots of differences, which rounding may push below zero. NaN stays NaN."""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = 4
"""How many units of rounding a sum of a few terms may be off by, relative to the terms."""


def root(q: Tensor, size: Tensor | float = 0.0) -> Tensor:
    """√q; 0 with gradient 0 where q is nothing but rounding noise of terms of that `size`."""
    info = torch.finfo(q.dtype)
    noise = q <= NOISE * info.eps * size + info.tiny
    return torch.where(noise, 0.0, torch.where(noise, 1.0, q).sqrt())


def inverse_root(q: Tensor, size: Tensor | float = 0.0) -> Tensor:
    """1/√q; 0 with gradient 0 where q is noise, or so small that powers of 1/√q do not exist."""
    info = torch.finfo(q.dtype)
    noise = q <= NOISE * info.eps * size + info.tiny**0.5
    return torch.where(noise, 0.0, torch.where(noise, 1.0, q).rsqrt())
