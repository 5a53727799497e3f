"""Triton kernels for the work between the matrix products: rows to unit length, and the softmax.

Plain torch reads and writes a block of logits about ten times. Here a row is read once from memory
(a second read finds it in the cache) and its gradient written once, in the type of the matrix
products. NaN is propagated: every bound is a comparison that is false for NaN. All are launched
without contraction of a·b − c, because with it the largest logit minus itself would not be 0.

Imported by `fused` only, for Triton comes with torch on Linux but not everywhere.
"""

# Triton's language, not Python's: its arguments have no types of ours.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unit_row(x, at, inside, TINY: tl.constexpr):
    """A row divided by its largest entry, then by its length; that length; and that entry.

    An empty row has length inf.
    """
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    most = tl.max(tl.abs(v), 0)
    most = tl.where(most < TINY, TINY, most)
    v = tl.div_rn(v, tl.zeros_like(v) + most)
    long = tl.sqrt_rn(tl.sum(v * v, 0))
    long = tl.where(long == 0, float("inf"), long)
    return tl.div_rn(v, tl.zeros_like(v) + long), long, most


@triton.jit
def _same_row(x, at, inside, long, most):
    """What `_unit_row` made of it."""
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    return tl.div_rn(tl.div_rn(v, tl.zeros_like(v) + most), tl.zeros_like(v) + long)


@triton.jit
def _across(g, u, long, most, MOST: tl.constexpr):
    """What of a gradient is across its row, over the length; inside the range of the type."""
    across = g - u * tl.sum(g * u, 0)
    # Divided twice: the product of the two divisors may overflow where both quotients do not.
    across = tl.div_rn(across, tl.zeros_like(g) + long)
    across = tl.div_rn(across, tl.zeros_like(g) + most)
    across = tl.where(across > MOST, MOST, across)
    return tl.where(across < -MOST, -MOST, across)


@triton.jit
def unit_forward(x, unit, length, largest, D, TINY: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    u, long, most = _unit_row(x + row * D, at, inside, TINY)
    tl.store(unit + row * D + at, u, mask=inside)
    tl.store(length + row, long)
    tl.store(largest + row, most)


@triton.jit
def unit_backward(grad, unit, length, largest, out, D, MOST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    g = tl.load(grad + row * D + at, mask=inside, other=0.0)
    u = tl.load(unit + row * D + at, mask=inside, other=0.0)
    across = _across(g, u, tl.load(length + row), tl.load(largest + row), MOST)
    tl.store(out + row * D + at, across.to(out.dtype.element_ty), mask=inside)


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
    BLOCK: tl.constexpr,
):
    """One sample: its N unit rows Y, the sums of the others X (times `cross`), and their squares.

    The unit rows are not kept in full: backward makes them again from x, which is smaller.
    """
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    X, Y = operands, operands + all_entries
    col, row, least = numbers, numbers + all_rows, numbers + 2 * all_rows
    length, largest = numbers + 3 * all_rows, numbers + 4 * all_rows
    S = tl.zeros([BLOCK], tl.float32)
    for k in range(N):
        u, _long, _most = _unit_row(x + (k * B + b) * D, at, inside, TINY)
        S += u
    for k in range(N):
        place = k * B + b
        # Computed again, not loaded: other threads may not see yet what a program has stored.
        u, long, most = _unit_row(x + place * D, at, inside, TINY)
        tl.store(length + place, long)
        tl.store(largest + place, most)
        rest = S - u
        tl.store(X + place * D + at, (rest * cross).to(X.dtype.element_ty), mask=inside)
        tl.store(Y + place * D + at, u.to(Y.dtype.element_ty), mask=inside)
        constant = x_squares * tl.sum(rest * rest, 0)
        tl.store(row + place, constant)
        tl.store(col + place, y_squares * tl.sum(u * u, 0))
        bound = tl.sqrt_rn(noise * (tl.abs(constant) + tl.abs(y_squares)) + TINY)
        tl.store(least + place, tl.where(bound < floor, floor, bound))


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
    BLOCK: tl.constexpr,
):
    """From the gradients of X (before `cross`), of Y and of `row` to those of x."""
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    length, largest = numbers + 3 * all_rows, numbers + 4 * all_rows
    factor = tl.load(scale) * tl.load(upstream)
    S = tl.zeros([BLOCK], tl.float32)
    if HAS_ROW:
        for k in range(N):
            place = k * B + b
            S += _same_row(
                x + place * D, at, inside, tl.load(length + place), tl.load(largest + place)
            )
    T = tl.zeros([BLOCK], tl.float32)
    for k in range(N):
        place = k * B + b
        g = tl.load(gX + place * D + at, mask=inside, other=0.0) * cross
        if HAS_ROW:
            u = _same_row(
                x + place * D, at, inside, tl.load(length + place), tl.load(largest + place)
            )
            g += (S - u) * (tl.load(row_sum + place) * twice)
        T += g * (tl.where(k == 1, second_weight, weight) * factor)
    for k in range(N):
        place = k * B + b
        long = tl.load(length + place)
        most = tl.load(largest + place)
        u = _same_row(x + place * D, at, inside, long, most)
        g = tl.load(gX + place * D + at, mask=inside, other=0.0) * cross
        if HAS_ROW:
            g += (S - u) * (tl.load(row_sum + place) * twice)
        g = tl.load(gY + place * D + at, mask=inside, other=0.0) - g
        g = T + g * (tl.where(k == 1, second_weight, weight) * factor)
        across = _across(g, u, long, most, MOST)
        tl.store(out + place * D + at, across.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _size(q, row, IS_ROOT: tl.constexpr):
    """q, or its root: what the logit is but for the scale and the sign."""
    if IS_ROOT:
        q = q + row
        q = tl.sqrt(tl.where(q < 0, 0.0, q))
    return q


@triton.jit
def _gradient(p, size, at, right, least, IS_ROOT: tl.constexpr, HAS_OWN: tl.constexpr):
    """Of the loss with respect to q, over the scale; of a root without the sign/2."""
    g = tl.where(at == right, 0.0 if HAS_OWN else p - 1, p)
    if IS_ROOT:
        size = tl.where(size < least, least, size)
        # One instruction, where a quotient takes many.
        g = g * tl.rsqrt(size * size)
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
    sign,
    IS_ROOT: tl.constexpr,
    HAS_COL: tl.constexpr,
    HAS_OWN: tl.constexpr,
    WANTED: tl.constexpr,
    WANT_SLOPE: tl.constexpr,
    WHOLE: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of one axis: its loss, and the gradient with respect to q (of a root, without the
    sign/2). `out` may be `q`: what is overwritten has been read.

    Arithmetic takes as much time as memory, so exponentials are powers of two with all factors
    combined, and there is no bounds check where all entries exist (`FULL`).
    """
    r = tl.program_id(0)
    axis = tl.program_id(1)
    index = axis.to(tl.int64) * rows + r
    q += index * columns
    out += index * columns
    col += axis.to(tl.int64) * col_stride
    here = axis.to(tl.int64) * row_stride + r
    right = first + r
    s = tl.load(scale) * (sign * 1.4426950408889634)  # over log 2
    constant = 0.0
    floor = 0.0
    if IS_ROOT:
        constant = tl.load(row + here)
        floor = tl.load(least + here)
    if HAS_OWN:
        mine = tl.load(own + here) * sign
    else:
        mine = tl.load(q + right)
        if HAS_COL:
            mine += tl.load(col + right)
        mine = _size(mine, constant, IS_ROOT)
    own_logit = mine * s

    if WHOLE:
        # The row stays in registers.
        at = tl.arange(0, BLOCK)
        inside = at < columns
        if FULL:
            size = tl.load(q + at)
            if HAS_COL:
                size += tl.load(col + at)
        else:
            size = tl.load(q + at, mask=inside, other=0.0)
            if HAS_COL:
                size += tl.load(col + at, mask=inside, other=0.0)
        size = _size(size, constant, IS_ROOT)
        if HAS_OWN:
            size = tl.where(at == right, mine, size)
        logit = size * s
        if not FULL:
            logit = tl.where(inside, logit, float("-inf"))
        most = tl.max(logit, 0)
        most = tl.where(own_logit == own_logit, most, own_logit)
        p = tl.exp2(logit - most)
        total = tl.sum(p, 0)
        if WANTED:
            p *= 1.0 / total
            if WANT_SLOPE:
                tl.store(slope + here, tl.sum(p * (size - mine), 0) * sign)
            g = _gradient(p, size, at, right, floor, IS_ROOT, HAS_OWN).to(out.dtype.element_ty)
            if FULL:
                tl.store(out + at, g)
            else:
                tl.store(out + at, g, mask=inside)
            if IS_ROOT:
                tl.store(row_sum + here, tl.sum(g.to(tl.float32), 0))
    else:
        most = own_logit
        total = 0.0
        for begin in range(0, columns, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < columns
            size = tl.load(q + at, mask=inside, other=0.0)
            if HAS_COL:
                size += tl.load(col + at, mask=inside, other=0.0)
            size = _size(size, constant, IS_ROOT)
            if HAS_OWN:
                size = tl.where(at == right, mine, size)
            logit = size * s
            if not FULL:
                logit = tl.where(inside, logit, float("-inf"))
            more = tl.max(logit, 0)
            more = tl.where(more > most, more, most)
            total = total * tl.exp2(most - more) + tl.sum(tl.exp2(logit - more), 0)
            most = more
        if WANTED:
            inverse = 1.0 / total
            summed = 0.0
            slant = 0.0
            for begin in range(0, columns, BLOCK):
                at = begin + tl.arange(0, BLOCK)
                inside = at < columns
                size = tl.load(q + at, mask=inside, other=0.0)
                if HAS_COL:
                    size += tl.load(col + at, mask=inside, other=0.0)
                size = _size(size, constant, IS_ROOT)
                if HAS_OWN:
                    size = tl.where(at == right, mine, size)
                p = tl.exp2(size * s - most) * inverse
                if not FULL:
                    p = tl.where(inside, p, 0.0)
                if WANT_SLOPE:
                    slant += tl.sum(p * (size - mine), 0)
                g = _gradient(p, size, at, right, floor, IS_ROOT, HAS_OWN)
                g = g.to(out.dtype.element_ty)
                tl.store(out + at, g, mask=inside)
                if IS_ROOT:
                    summed += tl.sum(g.to(tl.float32), 0)
            if WANT_SLOPE:
                tl.store(slope + here, slant * sign)
            if IS_ROOT:
                tl.store(row_sum + here, summed)
    tl.store(losses + here, (most - own_logit) * 0.6931471805599453 + tl.log(total))
    if WANTED and HAS_OWN:
        tl.store(own_grad + here, tl.exp2(own_logit - most) / total - 1)
