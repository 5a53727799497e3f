"""What is in a tensor, from one pass over its bytes in bounded memory.

A chunk is read into a buffer that stays in the processor's cache, so several passes over it cost
less than fetching it. Floats are compared as the integers their bits are: among positive ones the
order is the same, among negative ones it is reversed, and NaN and infinity lie beyond all others.
So the greatest as signed and the greatest as unsigned integer give the extremes and show whether
all is finite; only a chunk that is not is looked at again, element by element.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from holdfast.checkpoints import dtypes
from holdfast.checkpoints.model import SavedTensor
from holdfast.errors import UnreadableInput

CHUNK = 1 << 19
"""Bytes at a time: fits a second-level cache with room for two scratch arrays."""
TASK = 1 << 25
"""Bytes a worker takes at once."""
ROWS = 8
"""Bad rows that are named."""
THREADS = min(4, os.cpu_count() or 1)
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
    min: float
    max: float
    """Extremes of the finite part; NaN where it is empty."""
    norm: float
    """Of the finite part."""
    digest: int
    """Equal bytes give equal digests."""
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
    least: float = math.inf
    most: float = -math.inf
    square: float = 0.0
    digest: int = 0
    bad: list[int] = field(default_factory=list)
    """Flat indices of bad elements: the first of each bad row."""
    most_bits: int = -1
    least_bits: int = -1
    """The extremes of the last chunk, as they lie there."""

    def add(self, other: _Tally) -> None:
        self.nan += other.nan
        self.inf += other.inf
        self.negative_inf += other.negative_inf
        self.zero += other.zero
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
        self.flags = np.empty(CHUNK // 2 + 16, np.bool_)
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


def _count(scratch: _Scratch, nbytes: int, dtype: str, into: _Tally, at: int, row: int) -> None:
    """Add the chunk in the scratch to a tally; `at`: its first element, `row`: a row's length."""
    if dtype in _FLOAT8:
        _count_float8(scratch.bytes[:nbytes], dtype, into, at, row)
        return
    kind = _KINDS[dtype]
    bits = scratch.bytes[:nbytes].view(_UNSIGNED[kind.size])
    signed = int(bits.view(_SIGNED[kind.size]).max())
    unsigned = int(bits.max())
    if signed >= kind.infinite or unsigned >= kind.sign | kind.infinite:
        _count_bad(bits, dtype, into, at, row)
        return
    # Of a positive and a negative zero the greatest is either: both are 0.0.
    if signed < 0 or unsigned < kind.sign:
        smallest = int(bits.min())
        most = signed if signed >= 0 else smallest
        least = unsigned if unsigned >= kind.sign else smallest
    else:
        most, least = signed, unsigned
    # Most chunks bring no new extreme: only new bits are worth turning into a number.
    if most != into.most_bits:
        into.most_bits = most
        into.most = max(into.most, _value(most, dtype))
    if least != into.least_bits:
        into.least_bits = least
        into.least = min(into.least, _value(least, dtype))
    _count_finite(scratch, bits, dtype, into)


def _count_finite(scratch: _Scratch, bits: Array, dtype: str, into: _Tally) -> None:
    """Zeros and squares of a chunk without a bad element."""
    count = bits.size
    flags = scratch.flags[:count]
    if dtype in ("float32", "float64"):
        values = bits.view(dtype)
        np.equal(values, 0, out=flags)
        into.zero += int(np.count_nonzero(flags))
        into.square += _squares(values)
        return
    # Two elements in a word: each half becomes a float32 by moving its bits to their place.
    if count % 2:
        scratch.bytes[count * 2 : count * 2 + 2] = 0
    pairs = scratch.bytes[: (count + 1) // 2 * 4].view(np.uint32)
    words = scratch.words[: pairs.size]
    zero = -(count % 2)
    for half in (0, 1):
        if dtype == "bfloat16":
            if half:
                np.bitwise_and(pairs, np.uint32(0x7FFF0000), out=words)
            else:
                np.left_shift(pairs, np.uint32(17), out=words)
                np.right_shift(words, np.uint32(1), out=words)
        elif half:
            np.right_shift(pairs, np.uint32(3), out=words)
            np.bitwise_and(words, np.uint32(0x0FFFE000), out=words)
        else:
            np.left_shift(pairs, np.uint32(17), out=words)
            np.right_shift(words, np.uint32(4), out=words)
        zero += words.size - int(np.count_nonzero(words))
        values = words.view(np.float32)
        if dtype == "float16":
            np.multiply(values, np.float32(2.0**112), out=values)
        into.square += _squares(values)
    into.zero += zero


def _squares(values: Array) -> float:
    total = float(np.dot(values, values))
    if not _SMALLEST_SQUARES < total < math.inf:
        wide = values.astype(np.float64)
        scale = float(np.abs(wide).max())
        if scale == 0.0:
            return 0.0
        # Squares beyond float64 are left at its greatest.
        wide /= scale
        total = min(float(np.dot(wide, wide)) * scale * scale, 1.7e308)
    return total


def _wide(bits: Array, dtype: str) -> Array:
    """The values in float64 (float32 for what fits it)."""
    if dtype == "bfloat16":
        words: Array = bits.astype(np.uint32) << np.uint32(16)
        return words.view(np.float32)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(dtype)


def _count_bad(bits: Array, dtype: str, into: _Tally, at: int, row: int) -> None:
    values = _wide(bits, dtype)
    _count_values(values, into, at, row)


def _count_values(values: Array, into: _Tally, at: int, row: int) -> None:
    finite = np.isfinite(values)
    good = values[finite]
    bad = values.size - good.size
    if bad:
        nan = int(np.count_nonzero(np.isnan(values)))
        into.nan += nan
        into.inf += bad - nan
        if bad > nan:
            into.negative_inf += int(np.count_nonzero(values == -math.inf))
        _note_rows(np.flatnonzero(~finite), into, at, row)
    if good.size:
        into.most = max(into.most, float(good.max()))
        into.least = min(into.least, float(good.min()))
        into.zero += int(good.size - np.count_nonzero(good))
        into.square += _squares(good)


def _note_rows(places: Array, into: _Tally, at: int, row: int) -> None:
    """The first bad element of each of the first bad rows."""
    start = 0
    while start < places.size and len(into.bad) < 4 * ROWS:
        place = at + int(places[start])
        if not into.bad or into.bad[-1] // row != place // row:
            into.bad.append(place)
        start = int(np.searchsorted(places, (place // row + 1) * row - at))


def _count_float8(codes: Array, dtype: str, into: _Tally, at: int, row: int) -> None:
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


def _take(scratch: _Scratch, nbytes: int, number: int, tensor: SavedTensor, into: _Tally) -> None:
    """One chunk, by its number."""
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
    _count(scratch, nbytes, dtype, into, number * (CHUNK // dtypes.SIZES[dtype]), row * each)


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
    tensor: SavedTensor, first: int, last: int, scratch: _Scratch, file: BinaryIO
) -> _Tally:
    """The chunks from `first` up to `last` of a tensor that lies in one piece."""
    tally = _Tally()
    file.seek(tensor.span.offset + first * CHUNK)
    for number in range(first, last):
        nbytes = min(CHUNK, tensor.span.length - number * CHUNK)
        _read(file, scratch.view[:nbytes], tensor)
        _take(scratch, nbytes, number, tensor, tally)
    return tally


def _measure_inflated(tensor: SavedTensor, scratch: _Scratch, file: BinaryIO) -> _Tally:
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
                _take(scratch, filled, number, tensor, tally)
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


def _measure_strided(tensor: SavedTensor, scratch: _Scratch, file: BinaryIO) -> _Tally:
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
                _take(scratch, filled, number, tensor, tally)
                number, filled = number + 1, 0
    if filled:
        _take(scratch, filled, number, tensor, tally)
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


def _measured(tensor: SavedTensor, tally: _Tally) -> Measured:
    """The numbers of a whole tensor."""
    indices = [_index(tensor, place) for place in tally.bad]
    first = min(indices) if indices else None
    rows = sorted({index[0] for index in indices if index})[:ROWS]
    empty = tally.least > tally.most
    return Measured(
        numel=tensor.numel,
        nan=tally.nan,
        inf=tally.inf,
        zero=tally.zero,
        min=math.nan if empty else tally.least,
        max=math.nan if empty else tally.most,
        norm=math.sqrt(tally.square),
        digest=tally.digest,
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


def _measure_one(tensor: SavedTensor, scratch: _Scratch, file: BinaryIO) -> _Tally:
    if not tensor.numel:
        return _Tally()
    if _in_one_piece(tensor):
        return _measure_flat(tensor, 0, _chunks_of(tensor), scratch, file)
    if tensor.inflate is not None and (tensor.stride is None or _dense(tensor)):
        return _measure_inflated(tensor, scratch, file)
    return _measure_strided(tensor, scratch, file)


def _join(tensor: SavedTensor, parts: list[Measured]) -> Measured:
    """A tensor from its pieces."""
    bad: list[tuple[int, ...]] = []
    rows: set[int] = set()
    digest = 0
    for number, (part, found) in enumerate(zip(tensor.parts, parts, strict=True)):
        digest = (digest + found.digest * (2 * number + 1)) & _WORD
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
        digest=digest,
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

    @property
    def nbytes(self) -> int:
        """Bytes to be read for it."""
        if self.first is None:
            return self.tensor.nbytes
        return (self.last - self.first) * CHUNK


def _pieces(tensors: Iterable[tuple[int, SavedTensor]]) -> Iterator[_Piece]:
    step = TASK // CHUNK
    for owner, tensor in tensors:
        chunks = _chunks_of(tensor)
        if chunks <= step or not _in_one_piece(tensor):
            yield _Piece(owner, tensor)
            continue
        for first in range(0, chunks, step):
            last = min(first + step, chunks)
            yield _Piece(owner, tensor, first, last, ends=last == chunks)


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
                _measure_one(piece.tensor, scratch, file)
                if piece.first is None
                else _measure_flat(piece.tensor, piece.first, piece.last, scratch, file)
                for piece in task
            ]
    except OSError as error:
        file_name = task[0].tensor.span.file
        raise UnreadableInput(f"cannot read {file_name}: {error.strerror}") from error
    finally:
        spare.append(scratch)


def measure_all(tensors: Iterable[SavedTensor], *, threads: int = THREADS) -> Iterator[Measured]:
    """The numbers of each, in order; a few pieces are in work at once."""
    queue: list[SavedTensor] = list(tensors)
    flat: list[tuple[int, SavedTensor]] = []
    for owner, tensor in enumerate(queue):
        flat += [(owner, part.tensor) for part in tensor.parts] or [(owner, tensor)]
    waiting: dict[int, list[Measured]] = {}
    done = 0
    tally = _Tally()
    for piece, found in _run(_tasks(_pieces(flat)), threads):
        tally.add(found)
        if not piece.ends:
            continue
        waiting.setdefault(piece.owner, []).append(_measured(piece.tensor, tally))
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
