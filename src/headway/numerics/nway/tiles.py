"""Lines of any score: value and gradient by tiles of rows and columns.

The logits of a block of rows are computed tile by tile. Where one tile holds the whole block what
it was made of is kept and used at once; otherwise each tile is computed a second time for its
gradient, so that only one tile is ever held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headway.numerics.nway.blocks import even, room, rows_at_once
from headway.numerics.nway.lines import Pull, Tile, TileLine
from headway.numerics.nway.widest import widest


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
    # A thin tile would read the columns over and over: as near to a square as there is room for.
    side = max(int((room(like) / depth) ** 0.5), 16)
    step = min(rows_at_once(like, columns, 1, block), side, rows)
    return step, max(room(like) // (step * depth), 16)


def _tile(line: TileLine, rows: slice, cols: slice) -> tuple[Tensor, Pull]:
    return line.tile([tensor[rows] for tensor in line.rows], [tensor[cols] for tensor in line.cols])


def by_autograd(function: Callable[[list[Tensor], list[Tensor]], Tensor]) -> Tile:
    """A tile whose gradient nobody wrote out."""

    def tile(rows: list[Tensor], cols: list[Tensor]) -> tuple[Tensor, Pull]:
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in (*rows, *cols)]
            out = function(leaves[: len(rows)], leaves[len(rows) :])

        def pull(G: Tensor) -> list[Tensor]:
            found = torch.autograd.grad(out, leaves, G, materialize_grads=True)
            return list(found)

        return out.detach(), pull

    return tile
