"""The score of given tuples, as defined: T tuples of N vectors, (T, D) each."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.numerics.nway.roots import NOISE, inverse_root, root
from headway.numerics.nway.scores import COORDINATE_TILES


def tuple_scores(score: str, vectors: list[Tensor]) -> Tensor:
    """(T,) scores, without the constants that no softmax sees."""
    n = len(vectors)
    f = torch.stack(vectors)
    if score == "product":
        return f.prod(0).sum(-1)
    S = f.sum(0)
    if score == "norm":
        return root(S.square().sum(-1))
    if score == "norm-mean":
        return root(S.square().sum(-1)) / n
    if score in ("variance", "std"):
        # The spread about the mean: the same number, without the difference of large ones.
        spread = (f - S / n).square().sum((0, -1))
        return -spread if score == "variance" else -root(spread)
    if score == "leave-one-out":
        rest = S - f
        size = NOISE * f.square().sum((0, -1)).detach()
        return ((rest * f).sum(-1) * inverse_root(rest.square().sum(-1), size)).sum(0)
    count = S.new_full((), n)
    return COORDINATE_TILES[score]([S, f.square().sum(0), f.abs().sum(0) / n], [count])
