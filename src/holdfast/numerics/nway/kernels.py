"""Triton kernels for what lies between the matrix products: rows to unit length, and the softmax.

Plain torch reads and writes a block of logits about ten times. Here a row is read once from memory
(the second look finds it in the cache) and its gradient written once, in the type of the matrix
products. NaN goes through: every bound is a comparison that NaN fails.

Imported by `fused` only, for Triton comes with torch on Linux but not everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unit_forward(x, unit, length, largest, D, TINY: tl.constexpr, BLOCK: tl.constexpr):
    """A row divided by its largest entry, then by its length. An empty row has length inf."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    v = tl.load(x + row * D + at, mask=inside, other=0.0).to(tl.float32)
    most = tl.max(tl.abs(v), 0)
    most = tl.where(most < TINY, TINY, most)
    u = tl.div_rn(v, tl.zeros_like(v) + most)
    long = tl.sqrt_rn(tl.sum(u * u, 0))
    long = tl.where(long == 0, float("inf"), long)
    tl.store(unit + row * D + at, tl.div_rn(u, tl.zeros_like(v) + long), mask=inside)
    tl.store(length + row, long)
    tl.store(largest + row, most)


@triton.jit
def unit_backward(grad, unit, length, largest, out, D, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """What is across the row, over its length; inside the range of the type of `out`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    g = tl.load(grad + row * D + at, mask=inside, other=0.0)
    u = tl.load(unit + row * D + at, mask=inside, other=0.0)
    across = g - u * tl.sum(g * u, 0)
    # Divided twice: the product of the two may not exist where both quotients do.
    across = tl.div_rn(across, tl.zeros_like(g) + tl.load(length + row))
    across = tl.div_rn(across, tl.zeros_like(g) + tl.load(largest + row))
    across = tl.where(across > MOST, MOST, across)
    across = tl.where(across < -MOST, -MOST, across)
    tl.store(out + row * D + at, across.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _logit(q, row, SIGN: tl.constexpr):
    """The root of q (0: q itself) and the logit, before the scale."""
    root = q
    logit = q
    if SIGN != 0:
        q = q + row
        root = tl.sqrt_rn(tl.where(q < 0, 0.0, q))
        logit = root * SIGN
    return root, logit


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
        _own_root, mine = _logit(diagonal, constant, SIGN)

    most = mine * s
    total = 0.0
    for begin in range(0, columns, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < columns
        x = tl.load(q + at, mask=inside, other=0.0)
        if HAS_COL:
            x += tl.load(col + at, mask=inside, other=0.0)
        root, logit = _logit(x, constant, SIGN)
        if HAS_OWN:
            logit = tl.where(at == right, mine, logit)
        logit = tl.where(inside, logit * s, float("-inf"))
        more = tl.max(logit, 0)
        more = tl.where(more > most, more, most)
        total = total * tl.exp(most - more) + tl.sum(tl.exp(logit - more), 0)
        most = more
    tl.store(losses + here, (most - mine * s) + tl.log(total))

    if WANTED:
        inverse = 1.0 / total
        summed = 0.0
        slant = 0.0
        floor = 0.0
        if SIGN != 0:
            floor = tl.load(least + here)
        for begin in range(0, columns, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < columns
            x = tl.load(q + at, mask=inside, other=0.0)
            if HAS_COL:
                x += tl.load(col + at, mask=inside, other=0.0)
            root, logit = _logit(x, constant, SIGN)
            if HAS_OWN:
                logit = tl.where(at == right, mine, logit)
            p = tl.exp(logit * s - most) * inverse
            p = tl.where(inside, p, 0.0)
            slant += tl.sum(p * (logit - mine), 0)
            if HAS_OWN:
                g = tl.where(at == right, 0.0, p)
            else:
                g = tl.where(at == right, p - 1, p)
            if SIGN != 0:
                g = g / tl.where(root < floor, floor, root)
            rounded = g.to(out.dtype.element_ty)
            tl.store(out + at, rounded, mask=inside)
            if SIGN != 0:
                summed += tl.sum(tl.where(inside, rounded.to(tl.float32), 0.0), 0)
        tl.store(slope + here, slant)
        if SIGN != 0:
            tl.store(row_sum + here, summed)
        if HAS_OWN:
            tl.store(own_grad + here, tl.exp(mine * s - most) * inverse - 1)
