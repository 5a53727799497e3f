"""Lines of one matrix product: value and gradient, block by block.

With q = row + col + X Yᵀ a block costs one product for the logits and two for the gradients, and
a few passes over its entries between them. The passes are plain torch, in place; on an accelerator
`fuse` has torch.compile melt them into a few kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.nway.blocks import rows_at_once
from holdfast.numerics.nway.lines import GramLine
from holdfast.numerics.nway.products import add_product, product
from holdfast.numerics.nway.roots import NOISE
from holdfast.numerics.nway.widest import widest


def gram_entropy(
    line: GramLine,
    scale: Tensor,
    *,
    needs: Sequence[bool],
    gain: Tensor,
    offset: int,
    block: int | None,
    wanted: bool,
    operands: torch.dtype | None,
    fuse: bool,
) -> tuple[Tensor, list[Tensor | None]]:
    """The summed cross entropy, and gradients for scale, X, Y, col, row where needed.

    `gain` is the factor of the gradients: the scale, over what the features were divided by.
    """
    needs_scale, needs_X, needs_Y, needs_col, needs_row = (need and wanted for need in needs)
    X, Y, col, row, sign = line.X, line.Y, line.col, line.row, line.sign
    wide, sums = X.dtype, widest(X.device)
    narrow = operands or wide
    Xn, Yn = X.to(narrow), Y.to(narrow)
    step = rows_at_once(X, Y.shape[0], 1, block)
    any_grad = needs_scale or needs_X or needs_Y or needs_col or needs_row
    value = torch.zeros((), dtype=sums, device=X.device)
    gX = torch.empty_like(X) if any_grad else None
    gY = torch.zeros_like(Y) if any_grad else None
    gcol = torch.zeros_like(col) if any_grad and col is not None else None
    grow = torch.empty_like(row) if any_grad and row is not None else None
    middle = _fused(sign) if fuse else _plain(sign)
    least = _least(line)
    sum_cols = needs_col or needs_scale
    for begin in range(0, X.shape[0], step):
        rows = slice(begin, min(begin + step, X.shape[0]))
        q = product(Xn[rows], Yn.T)
        diagonal = torch.arange(rows.start, rows.stop, device=X.device) + offset
        losses, G, row_sum = middle(
            q,
            col,
            None if row is None else row[rows],
            None if least is None else least[rows],
            scale,
            diagonal,
            any_grad,
            narrow,
        )
        value += losses.sum(dtype=sums)
        if gX is None or gY is None:
            continue
        gX[rows] = product(G, Yn)
        add_product(gY, G.T, Xn[rows])
        if gcol is not None and sum_cols:
            gcol += G.sum(0, dtype=wide)
        if grow is not None:
            grow[rows] = row_sum
        del q, G
    if gX is None or gY is None:
        return value.to(wide), [None] * 5
    gscale = None
    if needs_scale:
        # Euler: a sum of G·q is a sum over what q is made of, and √ has degree one half.
        gscale = (gX * X).sum(dtype=sums)
        if gcol is not None and col is not None:
            gscale += (gcol * col).sum(dtype=sums)
        if grow is not None and row is not None:
            gscale += (grow * row).sum(dtype=sums)
        gscale = (gscale * (1 if sign is None else 2)).to(scale.dtype)
    grads: list[Tensor | None] = [gscale]
    for needed, grad in ((needs_X, gX), (needs_Y, gY), (needs_col, gcol), (needs_row, grow)):
        grads.append(grad.mul_(gain) if needed and grad is not None else None)
    return value.to(wide), grads


def _least(line: GramLine) -> Tensor | None:
    """The root below which q is rounding noise: it bounds the gradient of the root."""
    if line.sign is None:
        return None
    assert line.row is not None
    info = torch.finfo(line.X.dtype)
    size = line.row.abs() + (0 if line.col is None else line.col.abs().amax())
    return (NOISE * info.eps * size + info.tiny).sqrt()


Middle = Callable[..., tuple[Tensor, Tensor, Tensor]]


def _plain(sign: int | None) -> Middle:
    return _linear_in_place if sign is None else _root_in_place(sign)


def _linear_in_place(
    q: Tensor,
    col: Tensor | None,
    row: Tensor | None,
    least: Tensor | None,
    scale: Tensor,
    diagonal: Tensor,
    wanted: bool,
    narrow: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    if col is not None:
        q += col
    q *= scale
    logp = torch.log_softmax(q, dim=1)
    del q
    losses = -logp.gather(1, diagonal[:, None])[:, 0]
    if not wanted:
        return losses, logp, losses
    G = logp.exp_()
    G.scatter_add_(1, diagonal[:, None], -torch.ones_like(losses)[:, None])
    return losses, G.to(narrow), losses


def _root_in_place(sign: int) -> Middle:
    def middle(
        q: Tensor,
        col: Tensor | None,
        row: Tensor,
        least: Tensor,
        scale: Tensor,
        diagonal: Tensor,
        wanted: bool,
        narrow: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if col is not None:
            q += col
        q += row[:, None]
        length = q.clamp_min_(0).sqrt_()
        logp = torch.log_softmax(length * (sign * scale), dim=1)
        losses = -logp.gather(1, diagonal[:, None])[:, 0]
        if not wanted:
            return losses, logp, losses
        G = logp.exp_()
        G.scatter_add_(1, diagonal[:, None], -torch.ones_like(losses)[:, None])
        torch.maximum(length, least[:, None], out=length)
        G.div_(length).mul_(0.5 * sign)
        return losses, _narrowed(G, narrow), G.sum(1)

    return middle


def _narrowed(G: Tensor, narrow: torch.dtype) -> Tensor:
    if narrow == torch.float16:
        G = G.clamp(-6e4, 6e4)
    return G.to(narrow)


@cache
def _fused(sign: int | None) -> Middle:
    """The same passes without the in-place steps, for torch.compile to melt together."""

    def middle(
        q: Tensor,
        col: Tensor | None,
        row: Tensor | None,
        least: Tensor | None,
        scale: Tensor,
        diagonal: Tensor,
        wanted: bool,
        narrow: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if col is not None:
            q = q + col
        if sign is not None:
            assert row is not None
            q = (q + row[:, None]).clamp_min(0).sqrt()
        logits = q * (scale * (sign or 1))
        largest = logits.amax(1, keepdim=True)
        total = (logits - largest).exp().sum(1, keepdim=True)
        own = logits.gather(1, diagonal[:, None])
        losses = (largest + total.log() - own)[:, 0]
        if not wanted:
            return losses, losses, losses
        G = (logits - largest).exp() / total
        columns = torch.arange(q.shape[1], device=q.device)
        G = torch.where(columns[None] == diagonal[:, None], G - 1, G)
        if sign is not None:
            assert least is not None
            G = G * (0.5 * sign) / torch.maximum(q, least[:, None])
        return losses, _narrowed(G, narrow), G.sum(1)

    compiled: Any = torch.compile(middle, dynamic=True)
    out: Middle = compiled
    return out
