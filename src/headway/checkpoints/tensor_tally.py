"""Tallies a tensor's values in one pass over its bytes, in bounded memory.

A chunk is read into a buffer that stays in the processor's cache, so several passes over it cost
less than fetching it. Floats are compared as the integers their bits are: among positive ones the
order is the same, among negative ones it is reversed, and NaN and infinity lie beyond all others.
So the greatest as signed and the greatest as unsigned integer give the extremes and show whether
all is finite; only a chunk that is not is looked at again, element by element.

Every pass counts: a pass over the chunk costs a fifth of fetching it. So digests and norms are made
only where somebody compares them, and the zeros of a large tensor counted in one chunk of eight.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from headway.checkpoints import dtypes
from headway.checkpoints.checkpoint_info import SavedTensor
from headway.checkpoints.value_counts import (
    CHUNK,
    FLOAT8,
    GREATEST,
    KINDS,
    ONE,
    PARTS,
    SIGNED,
    SMALLEST_SQUARES,
    UNSIGNED,
    WORD,
    Array,
    CountBuffers,
    ValueTally,
    count_floats,
    count_whole,
    digest_of,
    halves,
    swap,
    value_of,
)
from headway.errors import UnreadableInput

ALL_ZEROS = 1 << 22
"""Bytes up to which all of a tensor is searched for zeros; of a larger one, one chunk of …"""
SOME_ZEROS = 8
STRIDED = 1 << 24
"""Bytes of a strided tensor gathered at once."""


def tally_all(
    tensor: SavedTensor, scratch: CountBuffers, file: BinaryIO, digest: bool
) -> ValueTally:
    """All of a tensor."""
    if not tensor.numel:
        return ValueTally()
    if in_one_piece(tensor):
        return tally_chunks(tensor, 0, chunks_of(tensor), scratch, file, digest)
    if tensor.inflate is not None and (tensor.stride is None or dense(tensor)):
        return _tally_inflated(tensor, scratch, file, digest)
    return _tally_strided(tensor, scratch, file, digest)


def in_one_piece(tensor: SavedTensor) -> bool:
    """Whether its bytes can be counted as they lie in the file."""
    return tensor.inflate is None and (tensor.stride is None or dense(tensor))


def chunks_of(tensor: SavedTensor) -> int:
    """How many chunks its bytes are."""
    return -(-tensor.span.length // CHUNK)


def dense(tensor: SavedTensor) -> bool:
    """Whether its elements fill its span, only in another order."""
    return tensor.numel * dtypes.SIZES[tensor.dtype] == tensor.nbytes and _distinct(tensor)


def _distinct(tensor: SavedTensor) -> bool:
    assert tensor.stride is not None
    expected = 1
    for step, size in sorted(zip(tensor.stride, tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def tally_chunks(
    tensor: SavedTensor,
    first: int,
    last: int,
    scratch: CountBuffers,
    file: BinaryIO,
    digest: bool,
) -> ValueTally:
    """The chunks from `first` up to `last` of a tensor that lies in one piece."""
    tally = ValueTally()
    file.seek(tensor.span.offset + first * CHUNK)
    plain = tensor.dtype in KINDS and tensor.byteorder == "little" and tensor.nbytes > CHUNK
    if plain:
        whole = min(last, tensor.span.length // CHUNK)
        _count_whole_chunks(tensor, range(first, whole), scratch, file, tally, digest)
        first = whole
    for number in range(first, last):
        nbytes = min(CHUNK, tensor.span.length - number * CHUNK)
        _read(file, scratch.view[:nbytes], tensor)
        _take(scratch, nbytes, number, tensor, tally, digest)
    return tally


def _count_whole_chunks(
    tensor: SavedTensor,
    numbers: range,
    scratch: CountBuffers,
    file: BinaryIO,
    into: ValueTally,
    digest: bool,
) -> None:
    """The same as `_take` of each, for the bulk of a checkpoint: as few steps a chunk as can be."""
    kind = KINDS[tensor.dtype]
    view = scratch.view[:CHUNK]
    bits = scratch.bytes[:CHUNK].view(UNSIGNED[kind.size])
    signed_bits = bits.view(SIGNED[kind.size])
    values = bits.view(tensor.dtype) if kind.size >= 4 else None
    shifted = scratch.words.view(bits.dtype)[: bits.size]
    every = tensor.nbytes <= ALL_ZEROS
    one, infinite, below = ONE[kind.size], kind.infinite, kind.sign | kind.infinite
    highest, lowest, smallest, closest = -1, -1, -1, -1
    square, nonzero, counted = 0.0, 0, 0
    fill = file.readinto  # type: ignore[attr-defined]
    for number in numbers:
        got = fill(view)
        if got != CHUNK:
            _read(file, view[got or 0 :], tensor)
        signed, unsigned = int(GREATEST(signed_bits)), int(GREATEST(bits))
        if signed >= infinite or unsigned >= below or not (signed or unsigned):
            _take(scratch, CHUNK, number, tensor, into, digest)
            continue
        if digest:
            part = float(np.dot(values, values)) if values is not None else halves(scratch, kind)
            if not SMALLEST_SQUARES < part < math.inf:  # the squares leave the range of the type
                _take(scratch, CHUNK, number, tensor, into, digest)
                continue
            square += part
            into.digest = (into.digest + digest_of(scratch, CHUNK, number)) & WORD
        if signed < 0:  # all negative: the least as bits is the one closest to 0
            closest = min(int(bits.min()), closest) if closest >= 0 else int(bits.min())
        elif signed > highest:
            highest = signed
        if unsigned >= kind.sign:
            lowest = max(lowest, unsigned)
        elif lowest < 0:  # no negative so far
            smallest = min(int(bits.min()), smallest) if smallest >= 0 else int(bits.min())
        if every or number % SOME_ZEROS == 0:
            np.left_shift(bits, one, out=shifted)
            nonzero += int(np.count_nonzero(shifted))
            counted += bits.size
    into.square += square
    into.some_zero += counted - nonzero
    into.some += counted
    held = [value_of(b, tensor.dtype) for b in (highest, lowest, smallest, closest) if b >= 0]
    if held:
        into.most = max(into.most, *held)
        into.least = min(into.least, *held)


def _tally_inflated(
    tensor: SavedTensor, scratch: CountBuffers, file: BinaryIO, digest: bool
) -> ValueTally:
    assert tensor.inflate is not None
    tally = ValueTally()
    number = filled = 0
    left = tensor.inflate.length
    for data in _inflated(tensor, file):
        start = 0
        while start < len(data) and left:
            count = min(len(data) - start, CHUNK - filled, left)
            scratch.view[filled : filled + count] = data[start : start + count]
            filled, start, left = filled + count, start + count, left - count
            if filled == CHUNK or not left:
                _take(scratch, filled, number, tensor, tally, digest)
                number, filled = number + 1, 0
    if left:
        raise UnreadableInput(
            f"{tensor.span.file}: {tensor.name} unpacks to {left} bytes less than it should"
        )
    return tally


def _inflated(tensor: SavedTensor, file: BinaryIO) -> Iterator[bytes]:
    assert tensor.inflate is not None
    file.seek(tensor.span.offset)
    unpack = zlib.decompressobj(-15)
    packed, skip = tensor.span.length, tensor.inflate.skip
    try:
        while packed and not unpack.eof and (data := file.read(min(packed, 1 << 16))):
            packed -= len(data)
            while data and not unpack.eof:
                out = unpack.decompress(data, 1 << 18)
                data = unpack.unconsumed_tail
                if skip >= len(out):
                    skip -= len(out)
                else:
                    yield out[skip:]
                    skip = 0
    except zlib.error as error:
        raise UnreadableInput(f"{tensor.span.file}: {tensor.name} cannot be unpacked") from error


def _tally_strided(
    tensor: SavedTensor, scratch: CountBuffers, file: BinaryIO, digest: bool
) -> ValueTally:
    """A view with gaps or repeats: gathered block by block, in the order of its indices."""
    tally = ValueTally()
    item = dtypes.SIZES[tensor.dtype]
    form: Any = np.dtype(f"V{item}")
    number = filled = 0
    for block in _blocks(tensor, tensor.shape, tensor.stride or (), 0, file, form):
        flat: Any = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        data = memoryview(flat)
        start = 0
        while start < len(data):
            count = min(len(data) - start, CHUNK - filled)
            scratch.view[filled : filled + count] = data[start : start + count]
            filled, start = filled + count, start + count
            if filled == CHUNK:
                _take(scratch, filled, number, tensor, tally, digest)
                number, filled = number + 1, 0
    if filled:
        _take(scratch, filled, number, tensor, tally, digest)
    return tally


def _blocks(
    tensor: SavedTensor,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    file: BinaryIO,
    form: Any,
) -> Iterator[Array]:
    """Arrays that together are the tensor, none reaching over more than `STRIDED` bytes."""
    item = form.itemsize
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    count = math.prod(shape)
    if reach * item <= STRIDED and count * item <= STRIDED:
        data: Any = np.empty(reach * item, np.uint8)
        if tensor.inflate is not None:
            raise UnreadableInput(
                f"{tensor.span.file}: {tensor.name} is compressed and not in one piece"
            )
        file.seek(tensor.span.offset + offset * item)
        _read(file, memoryview(data), tensor)
        steps = tuple(s * item for s in stride)
        yield np.lib.stride_tricks.as_strided(data.view(form), shape, steps, writeable=False)
        return
    rest = 1 + sum((n - 1) * s for n, s in zip(shape[1:], stride[1:], strict=True))
    rows = STRIDED // max((math.prod(shape[1:])) * item, 1)
    if stride[0]:
        rows = min(rows, (STRIDED // item - rest) // stride[0] + 1)
    if rows < 1:
        for index in range(shape[0]):
            yield from _blocks(
                tensor, shape[1:], stride[1:], offset + index * stride[0], file, form
            )
        return
    for index in range(0, shape[0], rows):
        some = (min(rows, shape[0] - index), *shape[1:])
        yield from _blocks(tensor, some, stride, offset + index * stride[0], file, form)


def _take(
    scratch: CountBuffers,
    nbytes: int,
    number: int,
    tensor: SavedTensor,
    into: ValueTally,
    digest: bool,
) -> None:
    """One chunk, by its number."""
    if digest:
        into.digest = (into.digest + digest_of(scratch, nbytes, number)) & WORD
    if tensor.byteorder == "big":
        swap(scratch, nbytes, tensor.dtype)
    dtype = PARTS.get(tensor.dtype, tensor.dtype)
    if dtype not in KINDS and dtype not in FLOAT8:
        count_whole(scratch, nbytes, dtype, into)
        return
    each = 2 if tensor.dtype in PARTS else 1
    row = max(tensor.numel // tensor.shape[0], 1) if tensor.shape and tensor.shape[0] else 1
    if tensor.stride is not None:
        row = 1  # in memory order; rows are found from the indices
    zeros = tensor.nbytes <= ALL_ZEROS or number % SOME_ZEROS == 0
    at = number * (CHUNK // dtypes.SIZES[dtype])
    count_floats(scratch, nbytes, dtype, into, at, row * each, zeros)


def _read(file: BinaryIO, view: memoryview, tensor: SavedTensor) -> None:
    got = 0
    while got < len(view):
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            raise UnreadableInput(
                f"{tensor.span.file} ended while {tensor.name} was read: it was changed meanwhile"
            )
        got += count
