"""The widest floating point type of a device, for sums and factors."""

from __future__ import annotations

import torch


def widest(device: torch.device) -> torch.dtype:
    """float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64
