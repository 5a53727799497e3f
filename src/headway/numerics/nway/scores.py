"""Builds the lines of each score from features, and computes the score of given tuples directly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.numerics.nway.features import (
    NOISE,
    GramLines,
    Line,
    TileLine,
    apply_function,
    inverse_root,
    root,
    unit_rows,
)
from headway.numerics.nway.score_tiles import (
    by_autograd,
    cosine_tile,
    distance_tile,
    leave_one_out_tile,
)

# From features to lines.

# `own` (N, B, D) are this process's rows, `all_` the columns (the same, or those of all ranks).
# Along axis k the other vectors of sample i stay, so their sum, product or sum of squares (the
# "rest") is one row tensor, and only f_k[j] varies: one matrix product per axis where the score
# allows it.

OfCoordinates = Callable[[list[Tensor], list[Tensor]], Tensor]
"""From [S, Q, m] by coordinate, and [N], to the score."""


def axis_weights(count: int, axes: str) -> list[float]:
    """The weight of the cross entropy along each axis.

    Published code iterates over rotations r and takes the softmax along axis r + 1, so that the
    "first" loss is the one along axis 1: the other modalities retrieve modality 1.
    """
    if axes == "mean":
        return [1 / count] * count
    if axes == "first-plus-rest":
        weights = [1 / (count - 1)] * count
        weights[1] = 1.0
        return weights
    raise ValueError(f"axes must be 'mean' or 'first-plus-rest', not {axes!r}")


def lines_of(score: str, own: Tensor, all_: Tensor, *, axes: str, unit: bool) -> list[Line]:
    """The lines of a score. `unit`: rows have length one, or are zero."""
    weights = axis_weights(len(own), axes)
    form = form_of(score, len(own))
    if form is not None:
        return [GramLines(weights, _rests(own), all_, *form[:3], unit=unit, sign=form.sign)]
    if score in _GRAM:
        return [_GRAM[score](own, all_, weights, unit)]
    if score in _TILES:
        make = _TILES[score](list(own.unbind(0)))
        return [make(k, column, weights[k]) for k, column in enumerate(all_.unbind(0))]
    return _OF_PAIRS[score](own, all_, axes)


class _Rests(torch.autograd.Function):
    """The sum of all others, for each of N. Its transpose is itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sum(0) - x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.sum(0) - grad


def _rests(x: Tensor) -> Tensor:
    return apply_function(_Rests, x)


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def _squares(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


class Form(NamedTuple):
    """The numbers of `GramLines` between a vector and the sum of all others."""

    cross: float
    x_squares: float
    y_squares: float
    sign: int | None


def form_of(score: str, n: int) -> Form | None:
    """The lines of scores that consist of such a form only."""
    if score == "variance":
        # ‖S‖²/N − Σ‖f‖² without what is constant in a row.
        return Form(2 / n, 0.0, 1 / n - 1, None)
    if score not in ("norm", "norm-mean"):
        return None
    one = 1 / n**2 if score == "norm-mean" else 1.0
    return Form(2 * one, one, one, 1)


def _std(own: Tensor, all_: Tensor, weights: list[float], unit: bool) -> GramLines:
    n = len(own)
    apart = -root(_squares(own - own.mean(0)).sum(0))
    others = 1 - torch.eye(n, dtype=own.dtype, device=own.device)
    return GramLines(
        weights,
        X=_rests(own),
        Y=all_,
        cross=-2 / n,
        x_squares=-1 / n,
        y_squares=1 - 1 / n,
        unit=unit,
        sign=-1,
        # Summed without its own vector, not subtracted from the sum of all: it may be the largest.
        row=(_squares(own) * others[:, :, None]).sum(1),
        own=apart.expand(n, -1),
    )


def _product(own: Tensor, all_: Tensor, weights: list[float], unit: bool) -> GramLines:
    # Prefix and suffix products: no division, so zeros are safe.
    features = own.unbind(0)
    before = [torch.ones_like(features[0])]
    for f in features[:-1]:
        before.append(before[-1] * f)
    after = [torch.ones_like(features[0])]
    for f in features[:0:-1]:
        after.append(after[-1] * f)
    return GramLines(weights, X=torch.stack(before) * torch.stack(after[::-1]), Y=all_)


Make = Callable[[int, Tensor, float], Line]


def _leave_one_out(own: list[Tensor]) -> Make:
    S = _total(own)

    def make(k: int, column: Tensor, weight: float) -> Line:
        rest = S - own[k]
        others = torch.stack([f for index, f in enumerate(own) if index != k], dim=1)
        with_rest = (others * rest[:, None]).sum(-1)
        inverse = inverse_root(_squares(rest), _squares(others).sum(-1).detach())
        rows = [others, with_rest, _squares(others), _squares(rest), inverse]
        cols = [column, _squares(column)]
        return TileLine(weight, rows, cols, leave_one_out_tile, len(own) + 2)

    return make


def _coordinates(tile: OfCoordinates) -> Callable[[list[Tensor]], Make]:
    def of(own: list[Tensor]) -> Make:
        n = len(own)

        def make(k: int, column: Tensor, weight: float) -> Line:
            others = torch.stack([f for index, f in enumerate(own) if index != k])
            rows = [others.sum(0), others.square().sum(0), others.abs().sum(0)]
            here = by_autograd(partial(_coordinate_tile, tile, n))
            return TileLine(weight, rows, [column], here, column.shape[1] * 4)

        return make

    return of


def _coordinate_tile(tile: OfCoordinates, n: int, rows: list[Tensor], cols: list[Tensor]) -> Tensor:
    rest, squares, sizes = (row[:, None] for row in rows)
    x = cols[0][None]
    return tile([rest + x, squares + x * x, (sizes + x.abs()) / n], [x.new_full((), n)])


def _spread(of: list[Tensor], n: Tensor) -> Tensor:
    S, Q, _ = of
    return Q - S * S / n


def coordinate_std(of: list[Tensor], n: list[Tensor]) -> Tensor:
    return -root(_spread(of, n[0]), of[1].detach()).mean(-1)


def coordinate_variance(of: list[Tensor], n: list[Tensor]) -> Tensor:
    return -root(_spread(of, n[0]).square().sum(-1))


def coordinate_energy(of: list[Tensor], n: list[Tensor]) -> Tensor:
    return -root(of[1]).sum(-1)


def coordinate_spread(of: list[Tensor], n: list[Tensor]) -> Tensor:
    return (of[2] - n[0].sqrt() * of[2] + root(of[1])).sum(-1)


def coordinate_evenness(of: list[Tensor], n: list[Tensor]) -> Tensor:
    return (of[2] + n[0].sqrt() * of[2] - root(of[1])).sum(-1)


def coordinate_sixth(of: list[Tensor], n: list[Tensor]) -> Tensor:
    S, _, m = of
    limit = torch.finfo(m.dtype).max ** 0.13  # its sixth power, summed, does not overflow
    return (S / n[0] - m.clamp_max(limit) ** 6 / 2).sum(-1)


COORDINATE_TILES: dict[str, OfCoordinates] = {
    "coordinate-std": coordinate_std,
    "coordinate-variance": coordinate_variance,
    "coordinate-energy": coordinate_energy,
    "coordinate-spread": coordinate_spread,
    "coordinate-evenness": coordinate_evenness,
    "coordinate-sixth": coordinate_sixth,
}
_GRAM: dict[str, Callable[[Tensor, Tensor, list[float], bool], GramLines]] = {
    "std": _std,
    "product": _product,
}
_TILES: dict[str, Callable[[list[Tensor]], Make]] = {
    "leave-one-out": _leave_one_out,
    **{name: _coordinates(tile) for name, tile in COORDINATE_TILES.items()},
}


def _pairwise(own: Tensor, all_: Tensor, axes: str) -> list[Line]:
    n = len(own)
    weights = [weight / (n - 1) for weight in axis_weights(n, axes)]
    # Each modality against the next, then the one after it, and so on, cyclically.
    return [GramLines(weights, X=own.roll(by, 0), Y=all_) for by in range(1, n)]


def _both_ways(axes: str) -> list[float]:
    return axis_weights(2, axes)


def _mean(features: Tensor) -> Tensor:
    # Divided before the sum, which may overflow where the mean does not.
    return (features / len(features)).sum(0)


def _cosine(own: Tensor, all_: Tensor, axes: str) -> list[Line]:
    depth = len(own) * 3
    rows, cols = own.transpose(0, 1), all_.transpose(0, 1)
    mine, theirs = (unit_rows(_mean(features))[:, None] for features in (own, all_))
    forth, back = _both_ways(axes)
    return [
        TileLine(forth, [rows], [theirs], cosine_tile, depth),
        TileLine(back, [mine], [cols], cosine_tile, depth),
    ]


def _distance(own: Tensor, all_: Tensor, axes: str) -> list[Line]:
    depth = len(own) * 3
    rows, cols = own.transpose(0, 1), all_.transpose(0, 1)
    mine, theirs = _mean(own)[:, None], _mean(all_)[:, None]
    forth, back = _both_ways(axes)
    near = -root(_squares(rows - mine)).mean(1)
    to_means = [rows, _squares(rows)], [theirs, _squares(theirs)]
    to_vectors = [mine, _squares(mine)], [cols, _squares(cols)]
    return [
        TileLine(forth, *to_means, distance_tile, depth, near),
        TileLine(back, *to_vectors, distance_tile, depth, near),
    ]


def _anchor(own: Tensor, all_: Tensor, axes: str) -> list[Line]:
    mine, theirs = _mean(own[1:])[None], _mean(all_[1:])[None]
    forth, back = _both_ways(axes)
    # Both are means of their two directions; the second is symmetric, so one is enough.
    return [
        GramLines([forth / 2], X=own[:1], Y=theirs, cross=0.5),
        GramLines([forth / 2], X=mine, Y=all_[:1], cross=0.5),
        GramLines([back], X=mine, Y=theirs, cross=0.5),
    ]


_OF_PAIRS: dict[str, Callable[[Tensor, Tensor, str], list[Line]]] = {
    "pairwise": _pairwise,
    "cosine": _cosine,
    "distance": _distance,
    "anchor": _anchor,
}


# The score of given tuples, as defined: T tuples of N vectors, (T, D) each.


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
