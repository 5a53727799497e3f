"""Columns of a table that give the class away: each class has values of its own there.

A threshold that separates the classes is nothing strange by itself (`x > 0` may be the task). What
no honest measurement has is one class in which every sample has the very same number and no other
class has it: a column that was filled in when the outcome was known. A gap between the classes that
is wider than the classes are is strange where all other columns tell next to nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FEWEST = 16
"""Samples of a class."""
SPARSE = 0.5
"""Share of columns that are often at their smallest value: activations, pixels, counts of words."""
OFTEN = 0.05


def tell_tale(columns: Tensor, labels: Tensor, values: Tensor) -> dict[str, Any]:
    """Those columns, and what the others are like: how many overlap, how far classes are apart."""
    members = [columns[labels == value] for value in values.tolist()]
    if len(members) < 2 or min(map(len, members)) < FEWEST:
        return {}
    varied = columns.std(dim=0) > 0
    at_least = (columns == columns.amin(dim=0)).double().mean(dim=0) > OFTEN
    if float((at_least & varied).sum()) > SPARSE * float(varied.sum()):
        return {}
    lows = torch.stack([rows.amin(dim=0) for rows in members])
    highs = torch.stack([rows.amax(dim=0) for rows in members])
    means = torch.stack([rows.mean(dim=0) for rows in members])
    width = torch.stack([rows.std(dim=0) for rows in members]).amax(dim=0)
    order = lows.argsort(dim=0)
    lows, highs = lows.gather(0, order), highs.gather(0, order)
    gaps = (lows[1:] - highs[:-1]).amin(dim=0)
    apart = gaps > 0
    constant = apart & (lows == highs).any(dim=0)
    marked = constant | (apart & (gaps > width))
    distance = (means.amax(dim=0) - means.amin(dim=0)) / width.clamp_min(1e-12)
    rest = varied & ~apart
    chosen = constant if bool(constant.any()) else marked
    best = int(torch.where(chosen, gaps, torch.full_like(gaps, -1.0)).argmax())
    return {
        "marked": marked.nonzero().flatten()[:20].tolist(),
        "marked_best": best if bool(chosen[best]) else None,
        "marked_constant": bool(constant[best]),
        "marked_count": int(marked.sum()),
        "overlapping": int(rest.sum()),
        "others_apart": float(distance[rest].max()) if bool(rest.any()) else None,
    }
