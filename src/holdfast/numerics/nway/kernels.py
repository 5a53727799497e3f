"""Triton kernels for what lies between the matrix products: rows to unit length, and the softmax.

Plain torch reads and writes a block of logits about ten times. Here a row is read once from memory
(a second look finds it in the cache) and its gradient written once, in the type of the matrix
products. NaN goes through: every bound is a comparison that NaN fails. All are launched without
contraction of a·b − c, under which a difference from the largest logit would not be 0 for itself.

Imported by `fused` only, for Triton comes with torch on Linux but not everywhere.
"""

# Triton's language, not Python's: its arguments have no types of ours.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unit_rows(v, TINY: tl.constexpr):
    """Rows divided by their largest entry, then by their length; that length; and that entry.

    An empty row has length inf.
    """
    most = tl.max(tl.abs(v), 1)[:, None]
    most = tl.where(most < TINY, TINY, most)
    v = tl.div_rn(v, tl.zeros_like(v) + most)
    long = tl.sqrt_rn(tl.sum(v * v, 1))[:, None]
    long = tl.where(long == 0, float("inf"), long)
    return tl.div_rn(v, tl.zeros_like(v) + long), long, most


@triton.jit
def _across(g, u, long, most, MOST: tl.constexpr):
    """What of a gradient is across its row, over the length; inside the range of the type."""
    across = g - u * tl.sum(g * u, 1)[:, None]
    # Divided twice: the product of the two may not exist where both quotients do.
    across = tl.div_rn(across, tl.zeros_like(g) + long)
    across = tl.div_rn(across, tl.zeros_like(g) + most)
    across = tl.where(across > MOST, MOST, across)
    return tl.where(across < -MOST, -MOST, across)


@triton.jit
def unit_forward(x, unit, length, largest, D, TINY: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)[None, :]
    inside = at < D
    v = tl.load(x + row * D + at, mask=inside, other=0.0).to(tl.float32)
    u, long, most = _unit_rows(v, TINY)
    tl.store(unit + row * D + at, u, mask=inside)
    one = tl.arange(0, 1)[:, None]
    tl.store(length + row + one, long)
    tl.store(largest + row + one, most)


@triton.jit
def unit_backward(grad, unit, length, largest, out, D, MOST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)[None, :]
    inside = at < D
    g = tl.load(grad + row * D + at, mask=inside, other=0.0)
    u = tl.load(unit + row * D + at, mask=inside, other=0.0)
    across = _across(g, u, tl.load(length + row), tl.load(largest + row), MOST)
    tl.store(out + row * D + at, across.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sample(N, B, D, AXES: tl.constexpr, BLOCK: tl.constexpr):
    """Where the N rows of one sample begin, (AXES, 1); which of them exist; and a tile of them."""
    k = tl.arange(0, AXES)[:, None]
    place = k * B + tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)[None, :]
    return place, k < N, place * D + at, (k < N) & (at < D)


@triton.jit
def rests_forward(
    x,
    operands,
    numbers,
    N,
    B,
    D,
    all_rows,
    all_entries,
    cross,
    x_squares,
    y_squares,
    noise,
    floor,
    TINY: tl.constexpr,
    AXES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One sample: its N unit rows Y, the sums of the others X (times `cross`), and their squares.

    The unit rows are not kept in full: backward makes them again from x, which is smaller.
    """
    place, is_row, at, inside = _sample(N, B, D, AXES, BLOCK)
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    u, long, most = _unit_rows(v, TINY)
    rest = tl.where(inside, tl.sum(u, 0)[None, :] - u, 0.0)
    element = operands.dtype.element_ty
    tl.store(operands + at, (rest * cross).to(element), mask=inside)
    tl.store(operands + all_entries + at, u.to(element), mask=inside)
    col = y_squares * tl.sum(u * u, 1)[:, None]
    row = x_squares * tl.sum(rest * rest, 1)[:, None]
    bound = tl.sqrt_rn(noise * (tl.abs(row) + tl.abs(y_squares)) + TINY)
    bound = tl.where(bound < floor, floor, bound)
    tl.store(numbers + place, col, mask=is_row)
    tl.store(numbers + all_rows + place, row, mask=is_row)
    tl.store(numbers + 2 * all_rows + place, bound, mask=is_row)
    tl.store(numbers + 3 * all_rows + place, long, mask=is_row)
    tl.store(numbers + 4 * all_rows + place, most, mask=is_row)


@triton.jit
def rests_backward(
    x,
    gX,
    gY,
    numbers,
    row_sum,
    scale,
    upstream,
    out,
    N,
    B,
    D,
    all_rows,
    cross,
    twice,
    weight,
    second_weight,
    MOST: tl.constexpr,
    HAS_ROW: tl.constexpr,
    AXES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """From the gradients of X (before `cross`), of Y and of `row` to those of x."""
    place, is_row, at, inside = _sample(N, B, D, AXES, BLOCK)
    long = tl.load(numbers + 3 * all_rows + place, mask=is_row, other=1.0)
    most = tl.load(numbers + 4 * all_rows + place, mask=is_row, other=1.0)
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.div_rn(tl.div_rn(v, tl.zeros_like(v) + most), tl.zeros_like(v) + long)
    by_rest = tl.load(gX + at, mask=inside, other=0.0) * cross
    if HAS_ROW:
        of_row = tl.load(row_sum + place, mask=is_row, other=0.0) * twice
        by_rest += (tl.sum(u, 0)[None, :] - u) * of_row
    axis = tl.arange(0, AXES)[:, None]
    factor = tl.load(scale) * tl.load(upstream)
    factor = tl.where(axis == 1, second_weight, weight) * factor
    by_rest = tl.where(inside, by_rest * factor, 0.0)
    g = tl.load(gY + at, mask=inside, other=0.0) * factor
    g += tl.sum(by_rest, 0)[None, :] - by_rest
    across = _across(g, u, long, most, MOST)
    tl.store(out + at, across.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _logit(q, row, SIGN: tl.constexpr):
    """q, or ± its root, before the scale. What is under the root is not below zero."""
    if SIGN != 0:
        q = q + row
        q = tl.sqrt(tl.where(q < 0, 0.0, q)) * SIGN
    return q


@triton.jit
def _gradient(p, logit, at, right, least, SIGN: tl.constexpr, HAS_OWN: tl.constexpr):
    """Of the loss with respect to q, over the scale; of a root without the sign/2."""
    g = tl.where(at == right, 0.0 if HAS_OWN else p - 1, p)
    if SIGN != 0:
        # From the logit, not from q: of a whole row only logits and p stay in registers.
        length = logit * SIGN
        g = g / tl.where(length < least, least, length)
    return g


@triton.jit
def softmax_rows(
    q,
    out,
    col,
    row,
    least,
    own,
    scale,
    losses,
    row_sum,
    own_grad,
    slope,
    rows,
    columns,
    first,
    col_stride,
    row_stride,
    SIGN: tl.constexpr,
    HAS_COL: tl.constexpr,
    HAS_OWN: tl.constexpr,
    WANTED: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of one axis: its loss, and the gradient with respect to q (of a root, without the
    sign/2). `out` may be `q`: what is overwritten has been read.
    """
    r = tl.program_id(0)
    axis = tl.program_id(1)
    index = axis.to(tl.int64) * rows + r
    q += index * columns
    out += index * columns
    col += axis.to(tl.int64) * col_stride
    here = axis.to(tl.int64) * row_stride + r
    right = first + r
    s = tl.load(scale)
    constant = 0.0
    if SIGN != 0:
        constant = tl.load(row + here)
    if HAS_OWN:
        mine = tl.load(own + here)
    else:
        diagonal = tl.load(q + right)
        if HAS_COL:
            diagonal += tl.load(col + right)
        mine = _logit(diagonal, constant, SIGN)

    own_logit = mine * s
    floor = 0.0
    if SIGN != 0:
        floor = tl.load(least + here)

    if WHOLE:
        # The row stays in registers.
        at = tl.arange(0, BLOCK)
        inside = at < columns
        x = tl.load(q + at, mask=inside, other=0.0)
        if HAS_COL:
            x += tl.load(col + at, mask=inside, other=0.0)
        logit = _logit(x, constant, SIGN)
        if HAS_OWN:
            logit = tl.where(at == right, mine, logit)
        scaled = tl.where(inside, logit * s, float("-inf"))
        most = tl.max(scaled, 0)
        most = tl.where(own_logit == own_logit, most, own_logit)
        p = tl.exp(scaled - most)
        total = tl.sum(p, 0)
        if WANTED:
            p *= 1.0 / total
            tl.store(slope + here, tl.sum(tl.where(inside, p * (logit - mine), 0.0), 0))
            g = _gradient(p, logit, at, right, floor, SIGN, HAS_OWN).to(out.dtype.element_ty)
            tl.store(out + at, g, mask=inside)
            if SIGN != 0:
                tl.store(row_sum + here, tl.sum(tl.where(inside, g.to(tl.float32), 0.0), 0))
    else:
        most = own_logit
        total = 0.0
        for begin in range(0, columns, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < columns
            x = tl.load(q + at, mask=inside, other=0.0)
            if HAS_COL:
                x += tl.load(col + at, mask=inside, other=0.0)
            logit = _logit(x, constant, SIGN)
            if HAS_OWN:
                logit = tl.where(at == right, mine, logit)
            scaled = tl.where(inside, logit * s, float("-inf"))
            more = tl.max(scaled, 0)
            more = tl.where(more > most, more, most)
            total = total * tl.exp(most - more) + tl.sum(tl.exp(scaled - more), 0)
            most = more
        if WANTED:
            inverse = 1.0 / total
            summed = 0.0
            slant = 0.0
            for begin in range(0, columns, BLOCK):
                at = begin + tl.arange(0, BLOCK)
                inside = at < columns
                x = tl.load(q + at, mask=inside, other=0.0)
                if HAS_COL:
                    x += tl.load(col + at, mask=inside, other=0.0)
                logit = _logit(x, constant, SIGN)
                if HAS_OWN:
                    logit = tl.where(at == right, mine, logit)
                p = tl.where(inside, tl.exp(logit * s - most) * inverse, 0.0)
                slant += tl.sum(p * (logit - mine), 0)
                g = _gradient(p, logit, at, right, floor, SIGN, HAS_OWN).to(out.dtype.element_ty)
                tl.store(out + at, g, mask=inside)
                if SIGN != 0:
                    summed += tl.sum(tl.where(inside, g.to(tl.float32), 0.0), 0)
            tl.store(slope + here, slant)
            if SIGN != 0:
                tl.store(row_sum + here, summed)
    tl.store(losses + here, (most - own_logit) + tl.log(total))
    if WANTED and HAS_OWN:
        tl.store(own_grad + here, tl.exp(own_logit - most) / total - 1)
