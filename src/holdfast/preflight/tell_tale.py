"""Columns of a table that give the class away: each class has values of its own there.

A threshold that separates the classes is nothing strange by itself (`x > 0` may be the task). What
no honest measurement has is a gap between the classes wider than the classes are, or one class in
which every sample has the very same number and no other class has it: a column that was filled in
when the outcome was known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FEWEST = 16
"""Samples of a class."""


def tell_tale(columns: Tensor, labels: Tensor, values: Tensor) -> dict[str, Any]:
    """Those columns, how many others vary, and how many of these separate the classes as well."""
    members = [columns[labels == value] for value in values.tolist()]
    if len(members) < 2 or min(map(len, members)) < FEWEST:
        return {}
    lows = torch.stack([rows.amin(dim=0) for rows in members])
    highs = torch.stack([rows.amax(dim=0) for rows in members])
    width = torch.stack([rows.std(dim=0) for rows in members]).amax(dim=0)
    order = lows.argsort(dim=0)
    lows, highs = lows.gather(0, order), highs.gather(0, order)
    gaps = (lows[1:] - highs[:-1]).amin(dim=0)
    apart = gaps > 0
    constant = (lows == highs).any(dim=0)
    marked = apart & (constant | (gaps > width))
    varied = columns.std(dim=0) > 0
    best = int(torch.where(marked, gaps / width.clamp_min(1e-12), -torch.ones_like(gaps)).argmax())
    return {
        "marked": marked.nonzero().flatten()[:20].tolist(),
        "marked_best": best if bool(marked[best]) else None,
        "marked_constant": bool(constant[best]),
        "marked_count": int(marked.sum()),
        "overlapping": int((varied & ~apart).sum()),
    }
