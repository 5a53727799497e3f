"""Lines of one matrix product: value and gradient, block by block; products of half operands with
float32 results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.numerics.nway.features import NOISE, GramLines, groups, widest
from headway.numerics.nway.triton_launch import can_fuse, fused_softmax

# Batched matrix products; of half operands with single-precision results.

HALF = (torch.float16, torch.bfloat16)


@cache
def can_multiply_halves(device: torch.device) -> bool:
    """Whether this device can multiply halves with a float32 result."""
    if device.type != "cuda":
        return False
    try:
        one = torch.ones(2, 16, 16, dtype=torch.bfloat16, device=device)
        torch.bmm(one, one, out_dtype=torch.float32)
    except (TypeError, RuntimeError):  # before torch 2.8
        return False
    return True


@cache
def _can_write_them_into(device: torch.device) -> bool:
    try:
        one = torch.ones(2, 16, 16, dtype=torch.bfloat16, device=device)
        torch.bmm(one, one, out_dtype=torch.float32, out=one.float())
    except (TypeError, RuntimeError):
        return False
    return True


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left @ right, (K, n, m) and (K, m, l); in float32 if they are halves."""
    if left.dtype in HALF:
        if out is None or _can_write_them_into(left.device):
            return torch.bmm(left, right, out_dtype=torch.float32, out=out)
        return out.copy_(torch.bmm(left, right, out_dtype=torch.float32))
    return torch.bmm(left, right, out=out)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right."""
    if left.dtype in HALF:
        total += product(left, right)
    else:
        total.baddbmm_(left, right)


# Lines of one matrix product: value and gradient, block by block.

# A block (some axes, or some rows of one) costs one product for the logits and two for the
# gradients, and a few passes over its entries between them: plain torch, in place, or one kernel
# (`fused`).


@dataclass
class RowNumbers:
    """Numbers of each row, (K, rows) each; those below are results."""

    row: Tensor | None
    least: Tensor | None
    own: Tensor | None
    losses: Tensor
    slope: Tensor | None
    """The gradient of the loss with respect to the scale."""
    row_sum: Tensor | None
    """The gradient with respect to `row`; of a root without its sign/2, as that of q."""
    own_grad: Tensor | None

    def part(self, axes: slice, rows: slice) -> RowNumbers:
        if (axes.stop - axes.start, rows.stop - rows.start) == self.losses.shape:
            return self
        cut: dict[str, Any] = {
            name: None if x is None else x[axes, rows] for name, x in vars(self).items()
        }
        return RowNumbers(**cut)


def gram_entropy(
    lines: GramLines,
    scale: Tensor,
    *,
    needs: Sequence[bool],
    gain: Tensor,
    offset: int,
    block: int | None,
    wanted: bool,
    operands: torch.dtype | None,
    fuse: bool,
) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
    """The summed cross entropy; gradients for scale, X, Y, row, own where needed, and the factor
    that each lacks.

    `gain` is the factor of the gradients: the scale, over what the features were divided by.
    """
    needs = [need and wanted for need in needs]
    needs_scale, needs_col = needs[0], needs[2] and not lines.unit and lines.y_squares != 0
    any_grad = any(needs)
    X, Y, sign = lines.X, lines.Y, lines.sign
    wide, sums = X.dtype, widest(X.device)
    narrow = operands or wide
    fuse = fuse and can_fuse(X, wide)
    Xn, Yn = _times(X, lines.cross, narrow), Y.to(narrow)
    col = _squares(Y, lines.y_squares) if lines.y_squares else None
    numbers = _numbers(lines, col, narrow, any_grad, fuse and needs_scale)
    weight = axis_factor(lines.weights, X)
    # The gradient of the scale by Euler's theorem needs them, see below.
    sum_cols = col is not None and any_grad and (needs_col or (needs_scale and not fuse))
    gcol = torch.zeros_like(col) if sum_cols and col is not None else None
    gX, gY = stream(
        Xn,
        Yn,
        col,
        numbers,
        scale,
        sign=sign,
        offset=offset,
        block=block,
        wanted=any_grad,
        fuse=fuse,
        gcol=gcol,
    )
    value = weighted(numbers.losses, lines.weights).to(wide)
    if gX is None or gY is None:
        return value, [None] * 5, [None] * 5
    gscale = None
    if needs_scale:
        gscale = _slope(lines, numbers, gX, gcol, col, sums) * weight[:, 0, 0]
        gscale = gscale.sum().to(scale.dtype)
    if numbers.row_sum is not None and lines.x_squares:
        gX.addcmul_(X, numbers.row_sum[..., None], value=2 * lines.x_squares / lines.cross)
    if gcol is not None and needs_col:
        gY.addcmul_(Y, gcol[..., None], value=2 * lines.y_squares)
    gain = gain * weight
    inner = gain if sign is None else gain * (sign / 2)
    grads = [gscale, gX, gY, numbers.row_sum, numbers.own_grad]
    factors = [None, inner * lines.cross, inner, inner[..., 0], gain[..., 0]]
    return value, [g if need else None for g, need in zip(grads, needs, strict=True)], factors


def stream(
    Xn: Tensor,
    Yn: Tensor,
    col: Tensor | None,
    numbers: RowNumbers,
    scale: Tensor,
    *,
    sign: int | None,
    offset: int,
    block: int | None,
    wanted: bool,
    fuse: bool,
    gcol: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """G Y and Gᵀ X, block by block; what belongs to rows goes into `numbers`, Σ G into `gcol`."""
    axes, n_rows, _ = Xn.shape
    narrow, wide = Xn.dtype, numbers.losses.dtype
    gX = torch.empty_like(Xn, dtype=wide) if wanted else None
    gY = torch.empty_like(Yn, dtype=wide) if wanted else None
    for part in groups(numbers.losses, axes, n_rows, Yn.shape[1], block):
        ks, rows = part
        q = product(Xn[part], Yn[ks].mT)
        here = numbers.part(*part)
        first = rows.start + offset
        if fuse:
            G = q if narrow == wide else torch.empty_like(q, dtype=narrow)
            fused_softmax(
                q,
                G,
                col=None if col is None else col[ks],
                scale=scale,
                first=first,
                sign=sign or 0,
                wanted=wanted,
                **vars(here),
            )
        else:
            if col is not None:
                q += col[ks, None]
            G = _in_place(q, here, scale, first, sign, wanted, narrow)
        del q
        if gX is None or gY is None:
            continue
        if gcol is not None:
            gcol[ks] += G.sum(1, dtype=wide)
        product(G, Yn[ks], out=gX[part])
        if rows.start == 0:
            product(G.mT, Xn[part], out=gY[ks])
        else:
            add_product(gY[ks], G.mT, Xn[part])
        del G
    return gX, gY


def _times(x: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    if factor == 1:
        return x.to(dtype)
    return torch.mul(x, factor, out=torch.empty_like(x, dtype=dtype))


def _squares(x: Tensor, factor: float) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return length.square_().mul_(factor)


def weighted(losses: Tensor, weights: list[float]) -> Tensor:
    """The sum of (K, rows) numbers, in the widest type, each axis times its weight."""
    sums = widest(losses.device)
    if all(weight == weights[0] for weight in weights):
        return losses.sum(dtype=sums) * weights[0]
    return (losses.sum(1, dtype=sums) * axis_factor(weights, losses)[:, 0, 0]).sum()


def axis_factor(weights: list[float], like: Tensor) -> Tensor:
    """(K, 1, 1), in the widest type. Filled on the device: a copy from the host would wait."""
    first = weights[0]
    out = torch.full((len(weights), 1, 1), first, dtype=widest(like.device), device=like.device)
    for index, weight in enumerate(weights):
        if weight != first:
            out[index].fill_(weight)
    return out


def _numbers(
    lines: GramLines, col: Tensor | None, narrow: torch.dtype, wanted: bool, sloped: bool
) -> RowNumbers:
    X = lines.X
    losses = X.new_empty(X.shape[:2])
    slope = torch.empty_like(losses) if sloped else None
    if lines.sign is None:
        return RowNumbers(None, None, None, losses, slope, None, None)
    row = _squares(X, lines.x_squares)
    if lines.row is not None:
        row += lines.row
    # The root below which q is rounding noise: it bounds the gradient of the root.
    info = torch.finfo(X.dtype)
    least = row.abs()
    if col is not None:
        least += col.amax(1, keepdim=True)
    least = least.mul_(NOISE * info.eps).add_(info.tiny).sqrt_()
    if narrow == torch.float16:
        least.clamp_min_(1e-4)  # its inverse must exist in the type of the matrix products
    own = None if lines.own is None else lines.own.contiguous()
    row_sum = torch.empty_like(losses) if wanted else None
    own_grad = None if own is None or not wanted else torch.empty_like(own)
    return RowNumbers(row, least, own, losses, slope, row_sum, own_grad)


def _slope(
    lines: GramLines,
    numbers: RowNumbers,
    gX: Tensor,
    gcol: Tensor | None,
    col: Tensor | None,
    sums: torch.dtype,
) -> Tensor:
    """The gradient of the K losses with respect to the scale."""
    if numbers.slope is not None:
        return numbers.slope.sum(1, dtype=sums)
    # Euler's theorem: a sum of G·q is a sum over the terms of q. G of a root lacks its sign/2, and
    # √ has degree one half.
    out = (gX * lines.X).sum((1, 2), dtype=sums) * lines.cross
    if gcol is not None and col is not None:
        out += (gcol * col).sum(1, dtype=sums)
    if numbers.row_sum is not None and numbers.row is not None:
        out += (numbers.row_sum * numbers.row).sum(1, dtype=sums)
    out *= lines.sign or 1
    if numbers.own_grad is not None and numbers.own is not None:
        out += (numbers.own_grad * numbers.own).sum(1, dtype=sums)
    return out


def _in_place(
    q: Tensor,
    here: RowNumbers,
    scale: Tensor,
    first: int,
    sign: int | None,
    wanted: bool,
    narrow: torch.dtype,
) -> Tensor:
    """The gradient of the losses with respect to q, over the scale; row r belongs to column
    first + r."""
    if sign is None:
        length, logits = None, q.mul_(scale)
    else:
        assert here.row is not None
        q += here.row[..., None]
        length = q.clamp_min_(0).sqrt_()
        if here.own is not None:
            torch.mul(here.own, sign, out=length.diagonal(first, 1, 2))
        logits = length * (sign * scale)
    logp = torch.log_softmax(logits, dim=2)
    del q, logits
    diagonal = logp.diagonal(first, 1, 2)
    torch.neg(diagonal, out=here.losses)
    if not wanted:
        return logp
    G = logp.exp_()
    diagonal -= 1
    if length is None:
        return G.to(narrow)
    if here.own_grad is not None:
        here.own_grad.copy_(diagonal)
        diagonal.zero_()
    assert here.least is not None
    assert here.row_sum is not None
    torch.maximum(length, here.least[..., None], out=length)
    # Rounded to half, if at all, in the same pass.
    out = G if narrow == G.dtype else torch.empty_like(G, dtype=narrow)
    torch.div(G, length, out=out)
    here.row_sum.copy_(out.sum(2, dtype=G.dtype))
    return out
