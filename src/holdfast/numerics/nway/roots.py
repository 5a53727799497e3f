"""Square roots of differences, which rounding may push below zero."""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = 4
"""How many units of rounding a sum of a few terms may be off by, relative to the terms."""


def root(q: Tensor, size: Tensor | float = 0.0) -> Tensor:
    """√q; 0 with gradient 0 where q is nothing but rounding noise of terms of that `size`."""
    info = torch.finfo(q.dtype)
    real = q > NOISE * info.eps * size + info.tiny
    return torch.where(real, torch.where(real, q, 1.0).sqrt(), 0.0)
