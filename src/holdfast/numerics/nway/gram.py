"""Lines of one matrix product: value and gradient, block by block.

With q = row + col + X Yᵀ a block costs one product for the logits and two for the gradients, and
a few passes over its entries between them. The passes are plain torch, in place; on an accelerator
`fuse` has torch.compile melt them into a few kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from holdfast.numerics.nway.blocks import even, rows_at_once
from holdfast.numerics.nway.fused import fused_middle
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
    """The summed cross entropy, and gradients for scale, X, Y, col, row, own where needed.

    `gain` is the factor of the gradients: the scale, over what the features were divided by.
    """
    needs = [need and wanted for need in needs]
    needs_scale, _, _, needs_col, _, _ = needs
    X, Y, col, row, sign, own = line.X, line.Y, line.col, line.row, line.sign, line.own
    wide, sums = X.dtype, widest(X.device)
    narrow = operands or wide
    Xn, Yn = X.to(narrow), Y.to(narrow)
    step = even(rows_at_once(X, Y.shape[0], 1, block), X.shape[0])
    any_grad = any(needs)
    value = torch.zeros((), dtype=sums, device=X.device)
    gX = torch.empty_like(X) if any_grad else None
    gY = torch.zeros_like(Y) if any_grad else None
    gcol = torch.zeros_like(col) if any_grad and col is not None else None
    grow = torch.empty_like(row) if any_grad and row is not None else None
    gown = torch.empty_like(own) if any_grad and own is not None else None
    middle = fused_middle(sign) if fuse else _plain(sign)
    least = _least(line, narrow)
    sum_cols = needs_col or needs_scale
    for begin in range(0, X.shape[0], step):
        rows = slice(begin, min(begin + step, X.shape[0]))
        q = product(Xn[rows], Yn.T, plus=col)
        losses, G, row_sum, own_grad = middle(
            q,
            None if row is None else row[rows],
            None if least is None else least[rows],
            None if own is None else own[rows],
            scale,
            rows.start + offset,
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
        if gown is not None and own_grad is not None:
            gown[rows] = own_grad
        del q, G
    if gX is None or gY is None:
        return value.to(wide), [None] * 6
    gscale = None
    if needs_scale:
        # Euler: a sum of G·q is a sum over what q is made of. G of a root lacks its sign/2, and
        # √ has degree one half.
        gscale = (gX * X).sum(dtype=sums)
        if gcol is not None and col is not None:
            gscale += (gcol * col).sum(dtype=sums)
        if grow is not None and row is not None:
            gscale += (grow * row).sum(dtype=sums)
        gscale = gscale * (sign or 1)
        if gown is not None and own is not None:
            gscale += (gown * own).sum(dtype=sums)
        gscale = gscale.to(scale.dtype)
    inner = gain if sign is None else gain * (sign / 2)
    grads: list[Tensor | None] = [gscale]
    for needed, grad, factor in zip(
        needs[1:],
        (gX, gY, gcol, grow, gown),
        (inner, inner, inner, inner, gain),
        strict=True,
    ):
        grads.append(grad.mul_(factor) if needed and grad is not None else None)
    return value.to(wide), grads


def _least(line: GramLine, narrow: torch.dtype) -> Tensor | None:
    """The root below which q is rounding noise: it bounds the gradient of the root."""
    if line.sign is None:
        return None
    assert line.row is not None
    info = torch.finfo(line.X.dtype)
    size = line.row.abs() + (0 if line.col is None else line.col.abs().amax())
    least = (NOISE * info.eps * size + info.tiny).sqrt()
    # Its inverse must exist in the type of the matrix products.
    return least.clamp_min(1e-4) if narrow == torch.float16 else least


Middle = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]]
"""From q, whose row r belongs to column first + r, to the losses of the rows, G (of a root
without its sign/2), the sums of its rows, and the gradient of the logits given as `own`."""


def _plain(sign: int | None) -> Middle:
    return _linear_in_place if sign is None else _root_in_place(sign)


def _linear_in_place(
    q: Tensor,
    row: Tensor | None,
    least: Tensor | None,
    own: Tensor | None,
    scale: Tensor,
    first: int,
    wanted: bool,
    narrow: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    q *= scale
    logp = torch.log_softmax(q, dim=1)
    del q
    losses = -logp.diagonal(first)
    if not wanted:
        return losses, logp, losses, None
    G = logp.exp_()
    G.diagonal(first).sub_(1)
    return losses, G.to(narrow), losses, None


def _root_in_place(sign: int) -> Middle:
    def middle(
        q: Tensor,
        row: Tensor,
        least: Tensor,
        own: Tensor | None,
        scale: Tensor,
        first: int,
        wanted: bool,
        narrow: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        q += row[:, None]
        length = q.clamp_min_(0).sqrt_()
        if own is not None:
            length.diagonal(first).copy_(own * sign)
        logp = torch.log_softmax(length * (sign * scale), dim=1)
        losses = -logp.diagonal(first)
        if not wanted:
            return losses, logp, losses, None
        G = logp.exp_()
        G.diagonal(first).sub_(1)
        own_grad = None
        if own is not None:
            own_grad = G.diagonal(first).clone()
            G.diagonal(first).zero_()
        torch.maximum(length, least[:, None], out=length)
        # Rounded to half, if at all, in the same pass.
        out = G if narrow == G.dtype else torch.empty_like(G, dtype=narrow)
        torch.div(G, length, out=out)
        return losses, out, out.sum(1, dtype=G.dtype), own_grad

    return middle
