"""Lines of any score, by tiles of rows and columns, with gradients written out by hand or by
autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headway.numerics.nway.features import (
    NOISE,
    Pull,
    Tile,
    TileLine,
    even,
    room,
    rows_at_once,
    widest,
)

# Tiles of scores made of several matrix products, with their gradients written out.

# Autograd would keep a tensor of N × rows × columns for every op and read all of them again; here a
# few are changed in place. Each function returns the (rows, columns) tile and a function that
# computes the gradients of its input tensors from that of the tile.

# `left` and `right` contain the vectors of a row or column, (rows, n, D); one may contain a single
# vector, (rows, 1, D), which is then combined with each of the other's n.

COSINE_BEND = 0.05
"""Below this cosine, its logarithm continues along the tangent: see docs/nway.md."""


def _facing(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(n, rows, D) and (n, columns, D)."""
    n = max(left.shape[1], right.shape[1])
    return (
        left.transpose(0, 1).expand(n, -1, -1),
        right.transpose(0, 1).expand(n, -1, -1),
    )


def _pulled(H: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of left and right from H, that of their n products (n, rows, columns)."""
    L, R = _facing(left, right)
    gL, gR = torch.bmm(H, R), torch.bmm(H.mT, L)
    return (
        (gL if left.shape[1] == len(H) else gL.sum(0, keepdim=True)).transpose(0, 1),
        (gR if right.shape[1] == len(H) else gR.sum(0, keepdim=True)).transpose(0, 1),
    )


def cosine_tile(rows: list[Tensor], cols: list[Tensor]) -> tuple[Tensor, Pull]:
    """The geometric mean of n cosines, whose logarithm has no pole at 0."""
    left, right = rows[0], cols[0]
    L, R = _facing(left, right)
    cosines = torch.bmm(L, R.mT)
    n = len(cosines)
    bent = cosines.clamp_min(COSINE_BEND)
    below = cosines.clamp_max_(COSINE_BEND).sub_(COSINE_BEND)
    out = torch.add(bent.log(), below, alpha=1 / COSINE_BEND).mean(0).exp_()
    del cosines, below

    def pull(G: Tensor) -> list[Tensor]:
        return list(_pulled(torch.div(G * out / n, bent, out=bent), left, right))

    return out, pull


def distance_tile(rows: list[Tensor], cols: list[Tensor]) -> tuple[Tensor, Pull]:
    """Minus the mean of n distances; 0 with gradient 0 where one is rounding noise."""
    (left, left_squares), (right, right_squares) = rows, cols
    L, R = _facing(left, right)
    dots = torch.bmm(L, R.mT)
    n = len(dots)
    info = torch.finfo(dots.dtype)
    of_rows, of_cols = left_squares.T[:, :, None], right_squares.T[:, None, :]
    q = torch.sub(of_cols, dots, alpha=2, out=dots).add_(of_rows)
    part = NOISE * info.eps
    noise = torch.sub(q, of_cols, alpha=part) <= of_rows * part + info.tiny
    length = q.masked_fill_(noise, 0).sqrt_()
    out = length.mean(0).neg_()

    def pull(G: Tensor) -> list[Tensor]:
        H = torch.div(G * (-0.5 / n), length, out=length).masked_fill_(noise, 0)
        by_row, by_col = H.sum(2).T, H.sum(1).T
        if left_squares.shape[1] == 1:
            by_row = by_row.sum(1, keepdim=True)
        if right_squares.shape[1] == 1:
            by_col = by_col.sum(1, keepdim=True)
        gL, gR = _pulled(H, left, right)
        return [gL * -2, by_row, gR * -2, by_col]

    return out, pull


def leave_one_out_tile(rows: list[Tensor], cols: list[Tensor]) -> tuple[Tensor, Pull]:
    """Σ ⟨S − f, f⟩ / ‖S − f‖ over all vectors f of the tuple; a term whose rest is noise is 0.

    The one that varies (the column) has a rest that does not: `inverse` is one over its length.
    """
    others, with_rest, squares, rest_squares, inverse = rows
    column, col_squares = cols
    L, R = _facing(others, column[:, None])
    dots = torch.bmm(L, R.mT)
    info = torch.finfo(dots.dtype)
    together = dots.sum(0)
    whole = torch.add(rest_squares[:, None] + col_squares, together, alpha=2)
    size = squares.sum(1)[:, None] + col_squares
    # ⟨S − f, f⟩, and ‖S − f‖² = ‖S‖² − 2 ⟨S − f, f⟩ − ‖f‖².
    over = dots.add_((with_rest - squares).T[:, :, None])
    below = torch.sub(whole, over, alpha=2).sub_(squares.T[:, :, None])
    noise = below <= size.mul_(NOISE * NOISE * info.eps).add_(info.tiny**0.5)
    one_over = below.masked_fill_(noise, torch.inf).rsqrt_()
    term = over.mul_(one_over)
    out = term.sum(0).addcmul_(together, inverse[:, None])
    del noise, size, whole, over

    def pull(G: Tensor) -> list[Tensor]:
        ratio = term.mul_(one_over)
        A = one_over.mul_(G)  # of ⟨S − f, f⟩
        B = ratio.mul_(A)  # of ‖S − f‖², times −2
        B_all = B.sum(0).mul_(-0.5)
        g_squares = B.sum(2).mul_(0.5)
        dot = A.add_(B)
        g_with_rest = dot.sum(2)
        g_squares -= g_with_rest
        dot += torch.add(G * inverse[:, None], B_all, alpha=2)
        g_others, g_column = _pulled(dot, others, column[:, None])
        return [
            g_others,
            g_with_rest.T,
            g_squares.T,
            B_all.sum(1),
            (G * together).sum(1),
            g_column[:, 0],
            B_all.sum(0),
        ]

    return out, pull


# Lines of any score: value and gradient by tiles of rows and columns.

# The logits of a block of rows are computed tile by tile. If one tile contains the whole block, its
# intermediate results are kept and used at once; otherwise each tile is computed a second time for
# its gradient, so that only one tile is in memory.


def tile_entropy(
    line: TileLine,
    scale: Tensor,
    *,
    needs: Sequence[bool],
    gain: Tensor,
    offset: int,
    block: int | None,
    wanted: bool,
) -> tuple[Tensor, list[Tensor | None]]:
    """The summed cross entropy, and gradients for scale, own, the row and the column tensors."""
    like = line.cols[0]
    sums = widest(like.device)
    n_rows, n_cols = line.rows[0].shape[0], like.shape[0]
    step, width = _shape(like, line.depth, n_rows, n_cols, block)
    any_grad = wanted and any(needs)
    grads = [torch.zeros_like(tensor) for tensor in (*line.rows, *line.cols)] if any_grad else []
    gown = torch.zeros_like(line.own) if any_grad and line.own is not None else None
    gscale = torch.zeros((), dtype=sums, device=like.device)
    value = torch.zeros((), dtype=sums, device=like.device)
    cut = len(line.rows)
    for begin in range(0, n_rows, step):
        rows = slice(begin, min(begin + step, n_rows))
        spans = [slice(at, min(at + width, n_cols)) for at in range(0, n_cols, width)]
        kept = any_grad and len(spans) == 1
        tiles = [_tile(line, rows, cols) for cols in spans] if kept else []
        made = tiles or (_tile(line, rows, cols) for cols in spans)
        logits = torch.cat([tile.detach() for tile, _ in made], dim=1)
        first = rows.start + offset
        if line.own is not None:
            logits.diagonal(first).copy_(line.own[rows])
        logp = torch.log_softmax(logits * scale, dim=1)
        value -= logp.diagonal(first).sum(dtype=sums)
        if not any_grad:
            continue
        G = logp.exp_()
        G.diagonal(first).sub_(1)
        gscale += (G * logits).sum(dtype=sums)
        if gown is not None:
            gown[rows] = G.diagonal(first)
            G.diagonal(first).zero_()
        for index_of_span, cols in enumerate(spans):
            _, pull = tiles[index_of_span] if kept else _tile(line, rows, cols)
            for index, grad in enumerate(pull(G[:, cols])):
                grads[index][rows if index < cut else cols] += grad
    if not any_grad:
        return value.to(like.dtype), [None] * len(needs)
    return value.to(like.dtype), [
        (grad if index == 0 else grad.mul_(gain.to(grad.dtype)))
        if needs[index] and grad is not None
        else None
        for index, grad in enumerate([gscale.to(scale.dtype), gown, *grads])
    ]


ENOUGH_ROWS = 128


def _shape(like: Tensor, depth: int, rows: int, columns: int, block: int | None) -> tuple[int, int]:
    """Rows and columns of a tile: whole rows where enough of them fit; they are computed once."""
    if block is None:
        whole = min(room(like) // max(depth * columns, 1), rows)
        if whole >= min(ENOUGH_ROWS, rows):
            return even(whole, rows), columns
    # A thin tile would read the columns repeatedly, so tiles are as nearly square as memory allows.
    side = max(int((room(like) / depth) ** 0.5), 16)
    step = min(rows_at_once(like, columns, 1, block), side, rows)
    return step, max(room(like) // (step * depth), 16)


def _tile(line: TileLine, rows: slice, cols: slice) -> tuple[Tensor, Pull]:
    return line.tile([tensor[rows] for tensor in line.rows], [tensor[cols] for tensor in line.cols])


def by_autograd(function: Callable[[list[Tensor], list[Tensor]], Tensor]) -> Tile:
    """A tile whose gradient is left to autograd."""

    def tile(rows: list[Tensor], cols: list[Tensor]) -> tuple[Tensor, Pull]:
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in (*rows, *cols)]
            out = function(leaves[: len(rows)], leaves[len(rows) :])

        def pull(G: Tensor) -> list[Tensor]:
            found = torch.autograd.grad(out, leaves, G, materialize_grads=True)
            return list(found)

        return out.detach(), pull

    return tile
