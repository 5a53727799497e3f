"""Triton kernels for the norms, the largest elements and the finiteness of many tensors at once.

The additions are those of `torch._foreach_norm` on CUDA in the same order, so that the bits are the
same: chunks of 65,536 elements, 512 threads with four sums each, which are added in pairs.
`FusedNorms` compares the bits before it relies on them.

Triton comes with torch on Linux but not everywhere: without it, these are functions that nobody
calls.
"""

# Triton's language, not Python's: its arguments have no types of ours.
# mypy: ignore-errors

from __future__ import annotations

from importlib.util import find_spec

if find_spec("triton") is None:
    jit = tl = None
else:
    import triton.language as tl
    from triton import jit

CHUNK = 65536
THREADS = 512
AVAILABLE = jit is not None
_kernel = jit or (lambda function: function)


@_kernel
def _pairwise(v, THREADS: tl.constexpr):
    """The sum of one number per thread: first in each warp of 32, then of the warps."""
    WARPS: tl.constexpr = THREADS // 32
    v = tl.sum(tl.reshape(v, (WARPS, 2, 16)), 1)
    v = tl.sum(tl.reshape(v, (WARPS, 2, 8)), 1)
    v = tl.sum(tl.reshape(v, (WARPS, 2, 4)), 1)
    v = tl.sum(tl.reshape(v, (WARPS, 2, 2)), 1)
    v = tl.sum(v, 1)
    v = tl.sum(tl.reshape(v, (2, 8)), 0)
    v = tl.sum(tl.reshape(v, (2, 4)), 0)
    v = tl.sum(tl.reshape(v, (2, 2)), 0)
    return tl.sum(v, 0)


@_kernel
def _add_four(v):
    """The four sums of each thread, [..., 2, 2], one after the other."""
    even, odd = tl.split(v)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return ((first + second) + third) + fourth


@_kernel
def squares_of_chunks(
    pointers,
    sizes,
    owners,
    starts,
    squares,
    largest,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    THREADS: tl.constexpr,
):
    """The sum of squares and the largest magnitude of one chunk; `KIND`, `WIDTH`: of an element."""
    number = tl.program_id(0)
    owner = tl.load(owners + number)
    start = tl.load(starts + number)
    remaining = tl.load(sizes + owner) - start
    left = tl.minimum(remaining, CHUNK).to(tl.int32)
    address = tl.load(pointers + owner)
    BLOCK: tl.constexpr = 4 * THREADS
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    most = tl.zeros([BLOCK], tl.float32)
    whole = (remaining % 4 == 0) & (address % (4 * WIDTH) == 0)
    if whole & (left == CHUNK):
        source = (address + start * WIDTH).to(tl.pointer_type(KIND))
        source = tl.multiple_of(source, 4 * WIDTH)
        for offset in range(0, CHUNK, BLOCK):
            x = tl.load(source + offset + at).to(tl.float32)
            total = tl.fma(x, x, total)
            most = tl.maximum(most, tl.abs(x))
    else:
        source = (address + start * WIDTH).to(tl.pointer_type(KIND))
        for offset in range(0, left, BLOCK):
            x = tl.load(source + offset + at, mask=offset + at < left, other=0.0).to(tl.float32)
            total = tl.fma(x, x, total)
            most = tl.maximum(most, tl.abs(x))
    if whole:  # a thread reads four neighbours
        each = _add_four(tl.reshape(total, (THREADS, 2, 2)))
    else:  # a thread reads elements that are `THREADS` apart
        each = _add_four(tl.permute(tl.reshape(total, (2, 2, THREADS)), (2, 0, 1)))
    tl.store(squares + number, _pairwise(each, THREADS))
    tl.store(largest + number, tl.max(most, 0))


@_kernel
def norms_of_tensors(squares, largest, firsts, found, COUNT, THREADS: tl.constexpr):
    """Of one tensor: norm, largest magnitude, and 1 where an element is not finite."""
    number = tl.program_id(0)
    begin = tl.load(firsts + number)
    end = tl.load(firsts + number + 1)
    at = tl.arange(0, THREADS)
    total = tl.zeros([THREADS], tl.float32)
    most = tl.zeros([THREADS], tl.float32)
    for offset in range(begin, end, THREADS):
        inside = offset + at < end
        total += tl.load(squares + offset + at, mask=inside, other=0.0)
        most = tl.maximum(most, tl.load(largest + offset + at, mask=inside, other=0.0))
    norm = tl.sqrt_rn(_pairwise(total, THREADS))
    highest = tl.max(most, 0)
    # A sum of squares is NaN only if an element is; a large finite one makes it infinite.
    bad = (norm != norm) | (highest == float("inf"))
    tl.store(found + number, norm)
    tl.store(found + COUNT + number, highest)
    tl.store(found + 2 * COUNT + number, tl.where(bad, 1.0, 0.0))
