"""A small regression with bad samples planted in it, for the loops of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

BATCH = 8


def loader(count: int, bad: Sequence[int] = ()) -> torch.utils.data.DataLoader[Any]:
    """Regression samples in a fixed order; those in `bad` hold a NaN at feature 3."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(6, 1, generator=generator)
    x = torch.randn(count, 6, generator=generator)
    y = x @ weights
    x[list(bad), 3] = float("nan")
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
