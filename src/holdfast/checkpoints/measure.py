"""What is in a tensor, from one pass over its bytes in bounded memory.

A chunk is read into a buffer that stays in the processor's cache, so several passes over it cost
less than fetching it. Floats are compared as the integers their bits are: among positive ones the
order is the same, among negative ones it is reversed, and NaN and infinity lie beyond all others.
So the greatest as signed and the greatest as unsigned integer give the extremes and show whether
all is finite; only a chunk that is not is looked at again, element by element.

Every pass counts: a pass over the chunk costs a fifth of fetching it. So digests are made only
where somebody compares them, and the zeros of a large tensor are counted in one chunk of eight.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from holdfast.checkpoints import dtypes
from holdfast.checkpoints.model import SavedTensor
from holdfast.errors import UnreadableInput

CHUNK = 1 << 19
"""Bytes at a time: fits a second-level cache, with a scratch array of the same size."""
TASK = 1 << 24
"""Bytes a worker takes at once."""
ROWS = 8
"""Bad rows that are named."""
THREADS = min(4, os.cpu_count() or 1)
ALL_ZEROS = 1 << 22
"""Bytes up to which all of a tensor is searched for zeros; of a larger one, one chunk of …"""
SOME_ZEROS = 8
STRIDED = 1 << 24
"""Bytes of a strided tensor gathered at once."""
_WORD = (1 << 64) - 1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one tensor."""

    numel: int
    nan: int
    inf: int
    zero: int
    """Of a tensor of more than `ALL_ZEROS` bytes an estimate."""
    min: float
    max: float
    """Extremes of the finite part; NaN where it is empty."""
    norm: float
    """Of the finite part."""
    digest: int | None
    """Equal bytes give equal digests; None where none was asked for."""
    first_bad: tuple[int, ...] | None = None
    """Index of the first element that is not finite."""
    bad_rows: list[int] = field(default_factory=list)
    """The first indices along the first axis that hold one."""
    negative_inf: int = 0
    """How many of `inf` are negative: a mask that was saved has only such."""


@dataclass(slots=True)
class _Tally:
    """Sums over some chunks of a tensor; tallies of one tensor add up in any order."""

    nan: int = 0
    inf: int = 0
    negative_inf: int = 0
    zero: int = 0
    looked: int = 0
    """How many elements were looked at for `zero`."""
    some_zero: int = 0
    """Zeros in the chunks that stand for others, and the elements of those chunks:"""
    some: int = 0
    least: float = math.inf
    most: float = -math.inf
    square: float = 0.0
    digest: int = 0
    bad: list[int] = field(default_factory=list)
    """Flat indices of bad elements: the first of each bad row."""
    most_bits: int = -1
    least_bits: int = -1
    """The greatest positive and the least negative so far, as bits; -1: none."""

    def add(self, other: _Tally) -> None:
        self.nan += other.nan
        self.inf += other.inf
        self.negative_inf += other.negative_inf
        self.zero += other.zero
        self.looked += other.looked
        self.some_zero += other.some_zero
        self.some += other.some
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)
        self.square += other.square
        self.digest = (self.digest + other.digest) & _WORD
        self.bad = sorted({*self.bad, *other.bad})[: 4 * ROWS]


class _Scratch:
    """The arrays of one worker, used again for every chunk."""

    def __init__(self) -> None:
        self.bytes = np.zeros(CHUNK + 64, np.uint8)
        self.words = np.empty(CHUNK // 4 + 16, np.uint32)
        self.view = memoryview(self.bytes)  # type: ignore[arg-type]


# -- kinds of elements ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the bits of a float are read."""

    size: int
    infinite: int
    """Bits from here on are not finite, the sign left out …"""
    sign: int
    exact: bool = True
    """… of which the first is the infinity; otherwise all are NaN."""


_KINDS = {
    "float64": _Kind(8, 0x7FF0 << 48, 1 << 63),
    "float32": _Kind(4, 0x7F800000, 1 << 31),
    "float16": _Kind(2, 0x7C00, 1 << 15),
    "bfloat16": _Kind(2, 0x7F80, 1 << 15),
}
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_ONE: dict[int, Any] = {2: np.uint16(1), 4: np.uint32(1), 8: np.uint64(1)}
_FROM_HALF = np.float32(2.0**112)
_UPPER, _HALF = np.uint32(0xFFFF0000), np.uint32(16)
_GREATEST = np.maximum.reduce
_SMALLEST_SQUARES = 1e-24
"""A sum of float32 squares below this may have lost some: added up again in float64."""


def _float8(dtype: str) -> Array:
    """The value of each of the 256 bytes."""
    bits = np.arange(256)
    sign = np.where(bits & 0x80, -1.0, 1.0)
    wide = "e5" in dtype
    mantissa_bits = 2 if wide else 3
    bias = (15 if wide else 7) + (1 if dtype.endswith("uz") else 0)
    exponent = (bits & 0x7F) >> mantissa_bits
    mantissa = bits & ((1 << mantissa_bits) - 1)
    unit = 2.0**-mantissa_bits
    normal = np.ldexp(1 + mantissa * unit, exponent - bias)
    value = sign * np.where(exponent == 0, np.ldexp(mantissa * unit, 1 - bias), normal)
    if dtype.endswith("uz"):
        value[0x80] = math.nan
    elif wide:
        value[[0x7C, 0xFC]] = [math.inf, -math.inf]
        value[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = math.nan
    else:
        value[[0x7F, 0xFF]] = math.nan
    return np.asarray(value)


_FLOAT8 = {
    name: _float8(name) for name in dtypes.SIZES if name.startswith("float8_e") and "m0" not in name
}


def _value(bits: int, dtype: str) -> float:
    """The float a pattern of bits stands for."""
    if dtype == "bfloat16":
        return float(np.uint32(bits << 16).view(np.float32))
    kind = _UNSIGNED[dtypes.SIZES[dtype]]
    form: Any = {2: np.float16, 4: np.float32, 8: np.float64}[dtypes.SIZES[dtype]]
    return float(kind(bits).view(form))


def _count(
    scratch: _Scratch, nbytes: int, dtype: str, into: _Tally, at: int, row: int, zeros: bool
) -> None:
    """Add the chunk in the scratch to a tally; `at`: its first element, `row`: a row's length."""
    if dtype in _FLOAT8:
        _count_float8(scratch.bytes[:nbytes], dtype, into, at, row)
        return
    kind = _KINDS[dtype]
    bits = scratch.bytes[:nbytes].view(_UNSIGNED[kind.size])
    signed = int(_GREATEST(bits.view(_SIGNED[kind.size])))
    unsigned = int(_GREATEST(bits))
    if signed >= kind.infinite or unsigned >= kind.sign | kind.infinite:
        _count_bad(scratch, bits, dtype, into, at, row)
        return
    if signed == 0 and unsigned in (0, kind.sign):  # nothing but zeros
        into.zero += bits.size
        into.looked += bits.size
        into.most, into.least = max(into.most, 0.0), min(into.least, 0.0)
        return
    # Of a positive and a negative zero the greatest is either: both are 0.0.
    if signed < 0 or unsigned < kind.sign:
        smallest = int(bits.min())
        most = signed if signed >= 0 else smallest
        least = unsigned if unsigned >= kind.sign else smallest
    else:
        most, least = signed, unsigned
    # Most chunks bring no new extreme: only bits beyond the last are worth turning into a number.
    if signed < 0 or most > into.most_bits:
        into.most_bits = max(signed, into.most_bits)
        into.most = max(into.most, _value(most, dtype))
    if unsigned < kind.sign or least > into.least_bits:
        into.least_bits = max(unsigned, into.least_bits) if unsigned >= kind.sign else -1
        into.least = min(into.least, _value(least, dtype))
    _count_finite(scratch, bits, dtype, into, zeros)


def _count_finite(scratch: _Scratch, bits: Array, dtype: str, into: _Tally, zeros: bool) -> None:
    """Zeros and squares of a chunk without a bad element."""
    count = bits.size
    if zeros:
        # The sign is shifted out: a negative zero is one, too.
        shifted = scratch.words.view(bits.dtype)[:count]
        np.left_shift(bits, _ONE[bits.itemsize], out=shifted)
        into.some_zero += count - int(np.count_nonzero(shifted))
        into.some += count
    if dtype in ("float32", "float64"):
        values = bits.view(dtype)
        into.square += _squares(values, scratch.words.view(dtype)[:count])
        return
    if count % 2:
        scratch.bytes[count * 2 : count * 2 + 2] = 0
    into.square += _halves(scratch, _KINDS[dtype], (count + 1) // 2)


def _halves(scratch: _Scratch, kind: _Kind, count: int = CHUNK // 4) -> float:
    """The squares of elements of 16 bits, `count` pairs of them.

    Each half of a word becomes a float32 by moving its bits to their place. The signs are of no
    account, they go with the square.
    """
    pairs = scratch.bytes[: count * 4].view(np.uint32)
    words = scratch.words[:count]
    values = words.view(np.float32)
    if kind.infinite == 0x7F80:
        np.bitwise_and(pairs, _UPPER, out=words)
        square = _squares(values, values)
        np.left_shift(pairs, _HALF, out=words)
        return square + _squares(values, values)
    np.right_shift(pairs, np.uint32(3), out=words)
    np.bitwise_and(words, np.uint32(0x0FFFE000), out=words)
    np.multiply(values, _FROM_HALF, out=values)
    square = _squares(values, values)
    np.left_shift(pairs, np.uint32(17), out=words)
    np.right_shift(words, np.uint32(4), out=words)
    np.multiply(values, _FROM_HALF, out=values)
    return square + _squares(values, values)


def _squares(values: Array, spare: Array) -> float:
    """The sum of squares; `spare` is overwritten where they leave the range of the type."""
    total = float(np.dot(values, values))
    if _SMALLEST_SQUARES < total < math.inf:
        return total
    peak = float(np.abs(values, out=spare).max())
    if peak == 0.0:
        return 0.0
    np.divide(values, values.dtype.type(peak), out=spare)
    # Squares beyond float64 are left at its greatest.
    return min(float(np.dot(spare, spare)) * peak * peak, 1.7e308)


def _count_bad(scratch: _Scratch, bits: Array, dtype: str, into: _Tally, at: int, row: int) -> None:
    """A chunk with a NaN or an infinity in it. The bad elements are set to 0 on the way."""
    kind = _KINDS[dtype]
    form = _UNSIGNED[kind.size]
    size = scratch.words.view(form)[: bits.size]
    np.bitwise_and(bits, form(kind.sign - 1), out=size)
    bad = size >= form(kind.infinite)
    count = int(np.count_nonzero(bad))
    nan = int(np.count_nonzero(size > form(kind.infinite)))
    into.nan += nan
    into.inf += count - nan
    if count > nan:
        into.negative_inf += int(np.count_nonzero(bits == form(kind.sign | kind.infinite)))
    into.zero += int(bits.size - np.count_nonzero(size))
    into.looked += bits.size
    if len(into.bad) < 4 * ROWS:
        _note_rows(np.flatnonzero(bad), into, at, row)
    if count == bits.size:
        return
    good = ~bad
    np.multiply(bits, good, out=bits, casting="unsafe")
    highest, lowest = int(_GREATEST(bits.view(_SIGNED[kind.size]))), int(_GREATEST(bits))
    if highest <= 0 or lowest <= kind.sign:  # of one sign: the zeros put in are no extremes
        left = bits[good]
        highest, lowest = _ends(left, kind)
    into.most = max(into.most, _value(highest, dtype))
    into.least = min(into.least, _value(lowest, dtype))
    _count_finite(scratch, bits, dtype, into, zeros=False)


def _ends(bits: Array, kind: _Kind) -> tuple[int, int]:
    """The bits of the greatest and of the least of finite elements."""
    highest, lowest = int(bits.view(_SIGNED[kind.size]).max()), int(bits.max())
    if highest < 0 or lowest < kind.sign:
        closest = int(bits.min())
        highest = highest if highest >= 0 else closest
        lowest = lowest if lowest >= kind.sign else closest
    return highest, lowest


def _note_rows(places: Array, into: _Tally, at: int, row: int) -> None:
    """The first bad element of each of the first bad rows."""
    start = 0
    while start < places.size and len(into.bad) < 4 * ROWS:
        place = at + int(places[start])
        if not into.bad or into.bad[-1] // row != place // row:
            into.bad.append(place)
        start = int(np.searchsorted(places, (place // row + 1) * row - at))


def _count_float8(codes: Array, dtype: str, into: _Tally, at: int, row: int) -> None:
    into.looked += codes.size
    counts = np.bincount(codes, minlength=256)
    table = _FLOAT8[dtype]
    present = counts > 0
    finite = np.isfinite(table)
    nan = int(counts[np.isnan(table)].sum())
    inf = int(counts[np.isinf(table)].sum())
    into.nan += nan
    into.inf += inf
    into.negative_inf += int(counts[table == -math.inf].sum())
    into.zero += int(counts[table == 0].sum())
    held = table[present & finite]
    if held.size:
        into.most = max(into.most, float(held.max()))
        into.least = min(into.least, float(held.min()))
        into.square += float((counts[finite] * table[finite] ** 2).sum())
    if nan or inf:
        _note_rows(np.flatnonzero(~finite[codes]), into, at, row)


def _count_whole(scratch: _Scratch, nbytes: int, dtype: str, into: _Tally) -> None:
    """Whole numbers and truth values."""
    form = {"bool": "uint8", "qint8": "int8", "quint8": "uint8", "qint32": "int32"}.get(
        dtype, dtype
    )
    if form.startswith("float8"):
        form = "uint8"
    values = scratch.bytes[:nbytes].view(form)
    into.looked += values.size
    into.most = max(into.most, float(values.max()))
    into.least = min(into.least, float(values.min()))
    into.zero += int(values.size - np.count_nonzero(values))
    wide = values.astype(np.float64)
    into.square += float(np.dot(wide, wide))


# -- tensors --------------------------------------------------------------------------------------


def _digest(scratch: _Scratch, nbytes: int, number: int) -> int:
    """A sum that depends on the place of the chunk, not on the order of adding."""
    tail = -nbytes % 8
    if tail:
        scratch.bytes[nbytes : nbytes + tail] = 0
    words = scratch.bytes[: nbytes + tail].view(np.uint64)
    return int(np.add.reduce(words)) * (2 * number + 1) & _WORD


def _swap(scratch: _Scratch, nbytes: int, dtype: str) -> None:
    size = dtypes.SIZES[_PARTS.get(dtype, dtype)]
    if size > 1:
        scratch.bytes[:nbytes].view(_UNSIGNED[size]).byteswap(inplace=True)


def _take(
    scratch: _Scratch, nbytes: int, number: int, tensor: SavedTensor, into: _Tally, digest: bool
) -> None:
    """One chunk, by its number."""
    if digest:
        into.digest = (into.digest + _digest(scratch, nbytes, number)) & _WORD
    if tensor.byteorder == "big":
        _swap(scratch, nbytes, tensor.dtype)
    dtype = _PARTS.get(tensor.dtype, tensor.dtype)
    if dtype not in _KINDS and dtype not in _FLOAT8:
        _count_whole(scratch, nbytes, dtype, into)
        return
    each = 2 if tensor.dtype in _PARTS else 1
    row = max(tensor.numel // tensor.shape[0], 1) if tensor.shape and tensor.shape[0] else 1
    if tensor.stride is not None:
        row = 1  # in memory order; rows are found from the indices
    zeros = tensor.nbytes <= ALL_ZEROS or number % SOME_ZEROS == 0
    at = number * (CHUNK // dtypes.SIZES[dtype])
    _count(scratch, nbytes, dtype, into, at, row * each, zeros)


def _read(file: BinaryIO, view: memoryview, tensor: SavedTensor) -> None:
    got = 0
    while got < len(view):
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            raise UnreadableInput(
                f"{tensor.span.file} ended while {tensor.name} was read: it was changed meanwhile"
            )
        got += count


def _measure_flat(
    tensor: SavedTensor,
    first: int,
    last: int,
    scratch: _Scratch,
    file: BinaryIO,
    digest: bool,
) -> _Tally:
    """The chunks from `first` up to `last` of a tensor that lies in one piece."""
    tally = _Tally()
    file.seek(tensor.span.offset + first * CHUNK)
    plain = tensor.dtype in _KINDS and tensor.byteorder == "little" and tensor.nbytes > CHUNK
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
    scratch: _Scratch,
    file: BinaryIO,
    into: _Tally,
    digest: bool,
) -> None:
    """The same as `_take` of each, for the bulk of a checkpoint: as few steps a chunk as can be."""
    kind = _KINDS[tensor.dtype]
    view = scratch.view[:CHUNK]
    bits = scratch.bytes[:CHUNK].view(_UNSIGNED[kind.size])
    signed_bits = bits.view(_SIGNED[kind.size])
    values = bits.view(tensor.dtype) if kind.size >= 4 else None
    shifted = scratch.words.view(bits.dtype)[: bits.size]
    every = tensor.nbytes <= ALL_ZEROS
    one, infinite, below = _ONE[kind.size], kind.infinite, kind.sign | kind.infinite
    highest, lowest, smallest, closest = -1, -1, -1, -1
    square, nonzero, counted = 0.0, 0, 0
    fill = file.readinto  # type: ignore[attr-defined]
    for number in numbers:
        got = fill(view)
        if got != CHUNK:
            _read(file, view[got or 0 :], tensor)
        signed, unsigned = int(_GREATEST(signed_bits)), int(_GREATEST(bits))
        part = 0.0
        if (signed or unsigned) and signed < infinite and unsigned < below:
            part = float(np.dot(values, values)) if values is not None else _halves(scratch, kind)
        if not _SMALLEST_SQUARES < part < math.inf:  # not finite, or the squares are not
            _take(scratch, CHUNK, number, tensor, into, digest)
            continue
        square += part
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
        if digest:
            into.digest = (into.digest + _digest(scratch, CHUNK, number)) & _WORD
    into.square += square
    into.some_zero += counted - nonzero
    into.some += counted
    held = [_value(b, tensor.dtype) for b in (highest, lowest, smallest, closest) if b >= 0]
    if held:
        into.most = max(into.most, *held)
        into.least = min(into.least, *held)


def _measure_inflated(
    tensor: SavedTensor, scratch: _Scratch, file: BinaryIO, digest: bool
) -> _Tally:
    assert tensor.inflate is not None
    tally = _Tally()
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


def _dense(tensor: SavedTensor) -> bool:
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


def _measure_strided(
    tensor: SavedTensor, scratch: _Scratch, file: BinaryIO, digest: bool
) -> _Tally:
    """A view with gaps or repeats: gathered block by block, in the order of its indices."""
    tally = _Tally()
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


def _zeros(tensor: SavedTensor, tally: _Tally) -> int:
    """The zeros of all of it: those counted, and as many of the rest as of the part looked at."""
    rest = tensor.numel * (2 if tensor.dtype in _PARTS else 1) - tally.looked
    if not tally.some_zero or tally.some >= rest:
        return tally.zero + tally.some_zero
    return tally.zero + round(tally.some_zero / tally.some * rest)


def _measured(tensor: SavedTensor, tally: _Tally, digest: bool) -> Measured:
    """The numbers of a whole tensor."""
    indices = [_index(tensor, place) for place in tally.bad]
    first = min(indices) if indices else None
    rows = sorted({index[0] for index in indices if index})[:ROWS]
    empty = tally.least > tally.most
    return Measured(
        numel=tensor.numel,
        nan=tally.nan,
        inf=tally.inf,
        zero=_zeros(tensor, tally),
        min=math.nan if empty else tally.least,
        max=math.nan if empty else tally.most,
        norm=math.sqrt(tally.square),
        digest=tally.digest if digest else None,
        first_bad=first,
        bad_rows=rows,
        negative_inf=tally.negative_inf,
    )


def _index(tensor: SavedTensor, place: int) -> tuple[int, ...]:
    """The index of an element from its place in the order it was read in."""
    if tensor.dtype in _PARTS:
        place //= 2
    shape = tensor.shape
    if tensor.stride is not None and _dense(tensor):
        found = [0] * len(shape)
        for axis in sorted(range(len(shape)), key=lambda a: -tensor.stride[a]):  # type: ignore[index]
            if shape[axis] > 1:
                found[axis], place = divmod(place, tensor.stride[axis])
        return tuple(found)
    back = []
    for size in reversed(shape):
        place, index = divmod(place, max(size, 1))
        back.append(index)
    return tuple(reversed(back))


def _in_one_piece(tensor: SavedTensor) -> bool:
    return tensor.inflate is None and (tensor.stride is None or _dense(tensor))


def _chunks_of(tensor: SavedTensor) -> int:
    return -(-tensor.span.length // CHUNK)


def _measure_one(tensor: SavedTensor, scratch: _Scratch, file: BinaryIO, digest: bool) -> _Tally:
    if not tensor.numel:
        return _Tally()
    if _in_one_piece(tensor):
        return _measure_flat(tensor, 0, _chunks_of(tensor), scratch, file, digest)
    if tensor.inflate is not None and (tensor.stride is None or _dense(tensor)):
        return _measure_inflated(tensor, scratch, file, digest)
    return _measure_strided(tensor, scratch, file, digest)


def _join(tensor: SavedTensor, parts: list[Measured]) -> Measured:
    """A tensor from its pieces."""
    bad: list[tuple[int, ...]] = []
    rows: set[int] = set()
    digest = 0
    for number, (part, found) in enumerate(zip(tensor.parts, parts, strict=True)):
        digest = (digest + (found.digest or 0) * (2 * number + 1)) & _WORD
        if found.first_bad is not None:
            bad.append(tuple(a + b for a, b in zip(part.at, found.first_bad, strict=True)))
            rows.update(part.at[0] + row for row in found.bad_rows if part.at)
    low = [found.min for found in parts if not math.isnan(found.min)]
    high = [found.max for found in parts if not math.isnan(found.max)]
    return Measured(
        numel=sum(found.numel for found in parts),
        nan=sum(found.nan for found in parts),
        inf=sum(found.inf for found in parts),
        zero=sum(found.zero for found in parts),
        min=min(low, default=math.nan),
        max=max(high, default=math.nan),
        norm=math.sqrt(sum(found.norm**2 for found in parts)),
        digest=None if any(found.digest is None for found in parts) else digest,
        first_bad=min(bad, default=None),
        bad_rows=sorted(rows)[:ROWS],
        negative_inf=sum(found.negative_inf for found in parts),
    )


def measure(tensor: SavedTensor) -> Measured:
    """The numbers of a tensor."""
    return next(measure_all([tensor], threads=1))


@dataclass(slots=True)
class _Piece:
    """Some chunks of one tensor, or all of it."""

    owner: int
    tensor: SavedTensor
    first: int | None = None
    last: int = 0
    ends: bool = True
    """Whether it is the tensor's last."""
    digest: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes to be read for it."""
        if self.first is None:
            return self.tensor.nbytes
        return (self.last - self.first) * CHUNK


def _pieces(tensors: Iterable[tuple[int, SavedTensor, bool]]) -> Iterator[_Piece]:
    step = TASK // CHUNK
    for owner, tensor, digest in tensors:
        chunks = _chunks_of(tensor)
        if chunks <= step or not _in_one_piece(tensor):
            yield _Piece(owner, tensor, digest=digest)
            continue
        for first in range(0, chunks, step):
            last = min(first + step, chunks)
            yield _Piece(owner, tensor, first, last, ends=last == chunks, digest=digest)


def _tasks(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces of one file, about `TASK` bytes of them."""
    task: list[_Piece] = []
    size = 0
    for piece in pieces:
        if task and (size + piece.nbytes > TASK or len(task) >= 512 or _other_file(task, piece)):
            yield task
            task, size = [], 0
        task.append(piece)
        size += piece.nbytes
    if task:
        yield task


def _other_file(task: list[_Piece], piece: _Piece) -> bool:
    return task[0].tensor.span.file != piece.tensor.span.file


def _work(task: list[_Piece], spare: list[_Scratch]) -> list[_Tally]:
    scratch = spare.pop() if spare else _Scratch()
    try:
        with (
            open(task[0].tensor.span.file, "rb", buffering=0) as file,
            np.errstate(all="ignore"),
        ):
            return [
                _measure_one(piece.tensor, scratch, file, piece.digest)
                if piece.first is None
                else _measure_flat(
                    piece.tensor, piece.first, piece.last, scratch, file, piece.digest
                )
                for piece in task
            ]
    except OSError as error:
        file_name = task[0].tensor.span.file
        raise UnreadableInput(f"cannot read {file_name}: {error.strerror}") from error
    finally:
        spare.append(scratch)


def measure_all(
    tensors: Iterable[SavedTensor],
    *,
    threads: int = THREADS,
    digest: Callable[[SavedTensor], bool] | None = None,
) -> Iterator[Measured]:
    """The numbers of each, in order; a few pieces are in work at once.

    `digest` says of which tensors one is wanted; None: of all.
    """
    queue: list[SavedTensor] = list(tensors)
    flat: list[tuple[int, SavedTensor, bool]] = []
    for owner, tensor in enumerate(queue):
        wanted = digest is None or digest(tensor)
        parts_of = [part.tensor for part in tensor.parts] or [tensor]
        flat += [(owner, part, wanted) for part in parts_of]
    waiting: dict[int, list[Measured]] = {}
    done = 0
    tally = _Tally()
    for piece, found in _run(_tasks(_pieces(flat)), threads):
        tally.add(found)
        if not piece.ends:
            continue
        waiting.setdefault(piece.owner, []).append(_measured(piece.tensor, tally, piece.digest))
        tally = _Tally()
        whole = queue[piece.owner]
        if len(waiting[piece.owner]) == max(len(whole.parts), 1):
            parts = waiting.pop(piece.owner)
            yield _join(whole, parts) if whole.parts else parts[0]
            done += 1
    assert done == len(queue)


def _run(tasks: Iterator[list[_Piece]], threads: int) -> Iterator[tuple[_Piece, _Tally]]:
    spare: list[_Scratch] = []
    if threads <= 1:
        for task in tasks:
            yield from zip(task, _work(task, spare), strict=True)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="holdfast-scan") as pool:
        running: deque[tuple[list[_Piece], Future[list[_Tally]]]] = deque()
        try:
            for task in tasks:
                running.append((task, pool.submit(_work, task, spare)))
                if len(running) > 2 * threads:
                    first, future = running.popleft()
                    yield from zip(first, future.result(), strict=True)
            while running:
                first, future = running.popleft()
                yield from zip(first, future.result(), strict=True)
        finally:
            for _, future in running:
                future.cancel()
