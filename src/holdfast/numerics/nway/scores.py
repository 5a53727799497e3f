"""From features to lines.

`own` are this process's rows, `all_` the columns (the same, or those of all ranks). Along axis k
the other vectors of sample i stay, so their sum, product or sum of squares (the "rest") is one row
tensor, and only f_k[j] varies: one matrix product per axis where the score allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from holdfast.numerics.nway.features import unit_rows
from holdfast.numerics.nway.lines import GramLine, Line, Tile, TileLine
from holdfast.numerics.nway.roots import NOISE, inverse_root, root

Weighted = list[tuple[float, Line]]
COSINE_BEND = 0.05
"""Below it the logarithm of a cosine goes on as its tangent: see docs/nway.md."""


def axis_weights(count: int, axes: str) -> list[float]:
    """The weight of the cross entropy along each axis.

    Published code walks rotations r and takes the softmax along axis r + 1, so that the "first"
    loss is the one along axis 1: from everything else to modality 1.
    """
    if axes == "mean":
        return [1 / count] * count
    if axes == "first-plus-rest":
        weights = [1 / (count - 1)] * count
        weights[1] = 1.0
        return weights
    raise ValueError(f"axes must be 'mean' or 'first-plus-rest', not {axes!r}")


def lines_of(
    score: str, own: list[Tensor], all_: list[Tensor], *, axes: str, unit: bool
) -> Weighted:
    """The lines of a score with their weights. `unit`: rows have length one, or are zero."""
    if score in _PER_AXIS:
        weights = axis_weights(len(own), axes)
        make = _PER_AXIS[score](own, unit)
        return [(weight, make(k, all_[k])) for k, weight in enumerate(weights)]
    if score == "pairwise":
        return _pairwise(own, all_, axes)
    return {"cosine": _cosine, "distance": _distance, "anchor": _anchor}[score](own, all_, axes)


Make = Callable[[int, Tensor], Line]


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def _squares(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


def _column_squares(column: Tensor, unit: bool) -> Tensor:
    # Of unit rows they are constant; a gradient along the row would be projected away later.
    return _squares(column.detach() if unit else column)


def _norm(own: list[Tensor], unit: bool, divide: float = 1.0) -> Make:
    S = _total(own)

    def make(k: int, column: Tensor) -> Line:
        rest = S - own[k]
        factor = 1 / divide**2
        return GramLine(
            X=rest * (2 * factor),
            Y=column,
            col=_column_squares(column, unit) * factor,
            row=_squares(rest) * factor,
            sign=1,
        )

    return make


def _norm_mean(own: list[Tensor], unit: bool) -> Make:
    return _norm(own, unit, divide=len(own))


def _variance(own: list[Tensor], unit: bool) -> Make:
    S, n = _total(own), len(own)

    def make(k: int, column: Tensor) -> Line:
        # ‖S‖²/N − Σ‖f‖² without what is constant in a row.
        col = _column_squares(column, unit) * (1 / n - 1)
        return GramLine(X=(S - own[k]) * (2 / n), Y=column, col=col)

    return make


def _std(own: list[Tensor], unit: bool) -> Make:
    S, n = _total(own), len(own)
    apart = -root(_total([_squares(f - S / n) for f in own]))

    def make(k: int, column: Tensor) -> Line:
        rest = S - own[k]
        squares = _total([_squares(f) for index, f in enumerate(own) if index != k])
        return GramLine(
            X=rest * (-2 / n),
            Y=column,
            col=_column_squares(column, unit) * (1 - 1 / n),
            row=squares - _squares(rest) / n,
            sign=-1,
            own=apart,
        )

    return make


def _product(own: list[Tensor], unit: bool) -> Make:
    # Prefix and suffix products: no division, so zeros are no trouble.
    before = [torch.ones_like(own[0])]
    for f in own[:-1]:
        before.append(before[-1] * f)
    after = [torch.ones_like(own[0])]
    for f in own[:0:-1]:
        after.append(after[-1] * f)
    after.reverse()

    def make(k: int, column: Tensor) -> Line:
        return GramLine(X=before[k] * after[k], Y=column)

    return make


def _leave_one_out(own: list[Tensor], unit: bool) -> Make:
    S = _total(own)

    def make(k: int, column: Tensor) -> Line:
        rest = S - own[k]
        others = torch.stack([f for index, f in enumerate(own) if index != k], dim=1)
        with_rest = (others * rest[:, None]).sum(-1)
        inverse = inverse_root(_squares(rest), _squares(others).sum(-1).detach())
        rows = [others, with_rest, _squares(others), _squares(rest), inverse]
        return TileLine(rows, [column, _squares(column)], _leave_one_out_tile, len(own) + 2)

    return make


def _leave_one_out_tile(rows: list[Tensor], cols: list[Tensor]) -> Tensor:
    others, with_rest, squares, rest_squares, inverse = rows
    column, col_squares = cols
    grams = torch.einsum("bnd,cd->nbc", others, column)
    together = grams.sum(0)
    whole = rest_squares[:, None] + 2 * together + col_squares
    out = together * inverse[:, None]
    size = (squares.sum(1)[:, None] + col_squares).detach()
    for index in range(grams.shape[0]):
        own = squares[:, index, None]
        dot = with_rest[:, index, None] + grams[index]
        out = out + (dot - own) * inverse_root(whole - 2 * dot + own, size * NOISE)
    return out


def _coordinates(tile: Tile) -> Callable[[list[Tensor], bool], Make]:
    def of(own: list[Tensor], unit: bool) -> Make:
        n = len(own)

        def make(k: int, column: Tensor) -> Line:
            others = torch.stack([f for index, f in enumerate(own) if index != k])
            rows = [others.sum(0), others.square().sum(0), others.abs().sum(0)]
            return TileLine(rows, [column], partial(_coordinate_tile, tile, n), column.shape[1] * 4)

        return make

    return of


def _coordinate_tile(tile: Tile, n: int, rows: list[Tensor], cols: list[Tensor]) -> Tensor:
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
    limit = torch.finfo(m.dtype).max ** 0.13  # its sixth power, summed, still exists
    return (S / n[0] - m.clamp_max(limit) ** 6 / 2).sum(-1)


COORDINATE_TILES: dict[str, Tile] = {
    "coordinate-std": coordinate_std,
    "coordinate-variance": coordinate_variance,
    "coordinate-energy": coordinate_energy,
    "coordinate-spread": coordinate_spread,
    "coordinate-evenness": coordinate_evenness,
    "coordinate-sixth": coordinate_sixth,
}
_PER_AXIS: dict[str, Callable[[list[Tensor], bool], Make]] = {
    "norm": _norm,
    "norm-mean": _norm_mean,
    "variance": _variance,
    "std": _std,
    "product": _product,
    "leave-one-out": _leave_one_out,
    **{name: _coordinates(tile) for name, tile in COORDINATE_TILES.items()},
}


def _pairwise(own: list[Tensor], all_: list[Tensor], axes: str) -> Weighted:
    n = len(own)
    return [
        (weight / (n - 1), GramLine(X=own[other], Y=all_[k]))
        for k, weight in enumerate(axis_weights(n, axes))
        for other in range(n)
        if other != k
    ]


def _both_ways(axes: str) -> list[float]:
    return axis_weights(2, axes)


def _mean(features: list[Tensor]) -> Tensor:
    # Divided before the sum, which may not exist where the mean does.
    return _total([f / len(features) for f in features])


def _cosine(own: list[Tensor], all_: list[Tensor], axes: str) -> Weighted:
    depth = len(own) * 3
    rows, cols = torch.stack(own, dim=1), torch.stack(all_, dim=1)
    forth, back = _both_ways(axes)
    return [
        (forth, TileLine([rows], [unit_rows(_mean(all_))], _cosine_tile, depth)),
        (back, TileLine([unit_rows(_mean(own))], [cols], _cosine_tile_back, depth)),
    ]


def _geometric_mean(cosines: Tensor) -> Tensor:
    """Over the first axis. Its logarithm goes on as a tangent below the bend: no pole at 0."""
    above = cosines.clamp_min(COSINE_BEND).log()
    below = (cosines.clamp_max(COSINE_BEND) - COSINE_BEND) / COSINE_BEND
    return (above + below).mean(0).exp()


def _cosine_tile(rows: list[Tensor], cols: list[Tensor]) -> Tensor:
    return _geometric_mean(torch.einsum("bnd,cd->nbc", rows[0], cols[0]))


def _cosine_tile_back(rows: list[Tensor], cols: list[Tensor]) -> Tensor:
    return _geometric_mean(torch.einsum("bd,cnd->nbc", rows[0], cols[0]))


def _distance(own: list[Tensor], all_: list[Tensor], axes: str) -> Weighted:
    depth = len(own) * 3
    rows, cols = torch.stack(own, dim=1), torch.stack(all_, dim=1)
    mine, theirs = _mean(own), _mean(all_)
    forth, back = _both_ways(axes)
    near = -root(_squares(rows - mine[:, None])).mean(1)
    to_means = [rows, _squares(rows)], [theirs, _squares(theirs)]
    to_vectors = [mine, _squares(mine)], [cols, _squares(cols)]
    return [
        (forth, TileLine(*to_means, _distance_tile, depth, near)),
        (back, TileLine(*to_vectors, _distance_tile_back, depth, near)),
    ]


def _mean_distance(dots: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return -root(left + right - 2 * dots, (left + right).detach()).mean(0)


def _distance_tile(rows: list[Tensor], cols: list[Tensor]) -> Tensor:
    dots = torch.einsum("bnd,cd->nbc", rows[0], cols[0])
    return _mean_distance(dots, rows[1].T[:, :, None], cols[1][None, None])


def _distance_tile_back(rows: list[Tensor], cols: list[Tensor]) -> Tensor:
    dots = torch.einsum("bd,cnd->nbc", rows[0], cols[0])
    return _mean_distance(dots, rows[1][None, :, None], cols[1].T[:, None, :])


def _anchor(own: list[Tensor], all_: list[Tensor], axes: str) -> Weighted:
    mine, theirs = _mean(own[1:]), _mean(all_[1:])
    forth, back = _both_ways(axes)
    # Both are means of their two directions; the second is symmetric, so one will do.
    return [
        (forth / 2, GramLine(X=own[0] / 2, Y=theirs)),
        (forth / 2, GramLine(X=mine / 2, Y=all_[0])),
        (back, GramLine(X=mine / 2, Y=theirs)),
    ]
