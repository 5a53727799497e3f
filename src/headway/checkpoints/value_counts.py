"""Counts the values in the chunks of a tensor's bytes.

Floats are compared as the integers their bits are: among positive ones the order is the same, among
negative ones it is reversed, and Inf and NaN come after all finite values. So the maximum as signed
and the maximum as unsigned integer give both extremes and show whether the chunk is finite. Only a
chunk that is not finite is examined element by element.

A chunk stays in the processor's cache, but each pass over it still costs a fifth of reading it from
memory. Therefore norms and digests are computed only where they are compared, and the zeros of a
large tensor are counted in one chunk of eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headway.checkpoints import dtypes
from headway.checkpoints.checkpoint_info import SavedTensor

CHUNK = 1 << 19
"""Bytes counted at a time: fits a second-level cache together with a buffer of the same size."""
MAX_BAD_ROWS = 8
"""Non-finite rows that are reported."""
MAX_BAD_PLACES = 4 * MAX_BAD_ROWS
EXACT_ZEROS = 1 << 22
"""Bytes up to which zeros are counted in the whole tensor; above it, in one chunk of …"""
ZERO_SAMPLING = 8
WORD = (1 << 64) - 1
Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class ValueCounts:
    """Counts over some chunks of a tensor; the counts of several chunks add up in any order."""

    nan: int = 0
    inf: int = 0
    negative_inf: int = 0
    zero: int = 0
    """Zeros among the `exact` elements that were all examined."""
    exact: int = 0
    sampled_zero: int = 0
    """Zeros among the `sampled` elements, which stand for the rest of the tensor."""
    sampled: int = 0
    least: float = math.inf
    most: float = -math.inf
    square: float = 0.0
    digest: int = 0
    bad: list[int] = field(default_factory=list)
    """Flat indices of non-finite elements: the first one of each row."""

    def add(self, other: ValueCounts) -> None:
        """Adds the counts of other chunks."""
        self.nan += other.nan
        self.inf += other.inf
        self.negative_inf += other.negative_inf
        self.zero += other.zero
        self.exact += other.exact
        self.sampled_zero += other.sampled_zero
        self.sampled += other.sampled
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)
        self.square += other.square
        self.digest = (self.digest + other.digest) & WORD
        self.bad = sorted({*self.bad, *other.bad})[:MAX_BAD_PLACES]


class CountBuffers:
    """The arrays of one thread, used for every chunk."""

    def __init__(self) -> None:
        self.bytes = np.zeros(CHUNK + 64, np.uint8)
        self.words = np.empty(CHUNK // 4 + 16, np.uint32)
        self.view = memoryview(self.bytes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Kind:
    """The bit layout of a float type."""

    size: int
    infinite: int
    """Bits of Inf without the sign; everything above is NaN."""
    sign: int
    negative_infinite: int


_KINDS = {
    "float64": _Kind(8, 0x7FF0 << 48, 1 << 63, 0xFFF0 << 48),
    "float32": _Kind(4, 0x7F800000, 1 << 31, 0xFF800000),
    "float16": _Kind(2, 0x7C00, 1 << 15, 0xFC00),
    "bfloat16": _Kind(2, 0x7F80, 1 << 15, 0xFF80),
}
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_ONE: dict[int, Any] = {2: np.uint16(1), 4: np.uint32(1), 8: np.uint64(1)}
COMPLEX_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_MAX = np.maximum.reduce
_SMALLEST_SQUARES = 1e-24
"""A sum of float32 squares below this may have lost some to underflow: it is added up scaled."""


class _Views(NamedTuple):
    """A chunk in the buffers, as the arrays that counting needs."""

    bits: Array
    signed: Array
    spare: Array
    """Of the same type as `bits`; overwritten."""


class ChunkCounter:
    """Counts chunks of one tensor that were read into the buffers."""

    def __init__(self, tensor: SavedTensor, buffers: CountBuffers, digest: bool) -> None:
        self.buffers = buffers
        self.counts = ValueCounts()
        self._digest = digest
        self._dtype = COMPLEX_PARTS.get(tensor.dtype, tensor.dtype)
        self._size = dtypes.SIZES[self._dtype]
        self._swap = tensor.byteorder == "big" and self._size > 1
        self._exact = tensor.nbytes <= EXACT_ZEROS
        row = max(tensor.numel // tensor.shape[0], 1) if tensor.shape and tensor.shape[0] else 1
        if tensor.stride is not None:
            row = 1  # elements come in memory order; rows are found from the indices
        self._row = row * (2 if tensor.dtype in COMPLEX_PARTS else 1)
        self._kind = _KINDS.get(self._dtype)
        self._chunk = self._views(CHUNK) if self._kind is not None else None
        # The extremes as bits, -1 for none: of the positive elements, of the negative ones, and
        # those closest to 0 of chunks that have no negative or no positive elements.
        self._highest = self._lowest = self._smallest = self._closest = -1

    def add(self, nbytes: int, number: int) -> None:
        """Counts a chunk, the first `nbytes` of the buffers, by its number in the tensor."""
        if self._digest:
            digest = _digest_of(self.buffers, nbytes, number)
            self.counts.digest = (self.counts.digest + digest) & WORD
        if self._swap:
            self.buffers.bytes[:nbytes].view(_UNSIGNED[self._size]).byteswap(inplace=True)
        if self._kind is not None:
            self._add_floats(nbytes, number, self._kind)
        elif self._dtype in _FLOAT8:
            self._add_float8(self.buffers.bytes[:nbytes], number)
        else:
            self._add_integers(nbytes)

    def result(self) -> ValueCounts:
        """The counts of all chunks that were added."""
        bits = (self._highest, self._lowest, self._smallest, self._closest)
        extremes = [_value_of(each, self._dtype) for each in bits if each >= 0]
        if extremes:
            self.counts.most = max(self.counts.most, *extremes)
            self.counts.least = min(self.counts.least, *extremes)
        return self.counts

    def _views(self, nbytes: int) -> _Views:
        bits = self.buffers.bytes[:nbytes].view(_UNSIGNED[self._size])
        spare = self.buffers.words.view(bits.dtype)[: bits.size]
        return _Views(bits, bits.view(_SIGNED[self._size]), spare)

    def _add_floats(self, nbytes: int, number: int, kind: _Kind) -> None:
        # Most chunks of a checkpoint take this way: as few steps as possible.
        views = self._views(nbytes) if nbytes != CHUNK or self._chunk is None else self._chunk
        bits, signed_bits, spare = views
        signed, unsigned = int(_MAX(signed_bits)), int(_MAX(bits))
        if signed >= kind.infinite or unsigned >= kind.negative_infinite:
            self._add_nonfinite(views, number, kind)
            return
        counts = self.counts
        if signed == 0 and unsigned in (0, kind.sign):  # only zeros
            counts.zero += bits.size
            counts.exact += bits.size
            counts.most, counts.least = max(counts.most, 0.0), min(counts.least, 0.0)
            return
        if signed < 0:  # all are negative: the minimum as bits is the one closest to 0
            closest = int(bits.min())
            self._closest = min(closest, self._closest) if self._closest >= 0 else closest
        elif signed > self._highest:
            self._highest = signed
        if unsigned >= kind.sign:
            self._lowest = max(self._lowest, unsigned)
        elif self._lowest < 0:  # no negative element so far
            smallest = int(bits.min())
            self._smallest = min(smallest, self._smallest) if self._smallest >= 0 else smallest
        if self._exact or number % ZERO_SAMPLING == 0:
            # Shifts the sign out: a negative zero is a zero.
            np.left_shift(bits, _ONE[kind.size], out=spare)
            counts.sampled_zero += bits.size - int(np.count_nonzero(spare))
            counts.sampled += bits.size
        if self._digest:
            counts.square += self._squares(views, kind)

    def _squares(self, views: _Views, kind: _Kind) -> float:
        if kind.size >= 4:
            return _sum_of_squares(views.bits.view(self._dtype), views.spare.view(self._dtype))
        count = views.bits.size
        if count % 2:
            self.buffers.bytes[count * 2 : count * 2 + 2] = 0
        return _squares_of_halves(self.buffers, kind, (count + 1) // 2)

    def _add_nonfinite(self, views: _Views, number: int, kind: _Kind) -> None:
        """A chunk that has a NaN or an Inf. They are set to 0 on the way."""
        counts, (bits, _, spare) = self.counts, views
        unsigned = _UNSIGNED[kind.size]
        np.bitwise_and(bits, unsigned(kind.sign - 1), out=spare)
        bad = spare >= unsigned(kind.infinite)
        count = int(np.count_nonzero(bad))
        nan = int(np.count_nonzero(spare > unsigned(kind.infinite)))
        counts.nan += nan
        counts.inf += count - nan
        if count > nan:
            negative = np.count_nonzero(bits == unsigned(kind.negative_infinite))
            counts.negative_inf += int(negative)
        counts.zero += int(bits.size - np.count_nonzero(spare))
        counts.exact += bits.size
        self._note_rows(bad, number)
        if count == bits.size:
            return
        good = ~bad
        np.multiply(bits, good, out=bits, casting="unsafe")
        highest, lowest = int(_MAX(views.signed)), int(_MAX(bits))
        if highest <= 0 or lowest <= kind.sign:  # of one sign: the zeros just set are no extremes
            highest, lowest = _extremes(bits[good], kind)
        counts.most = max(counts.most, _value_of(highest, self._dtype))
        counts.least = min(counts.least, _value_of(lowest, self._dtype))
        if self._digest:
            counts.square += self._squares(views, kind)

    def _note_rows(self, bad: Array, number: int) -> None:
        """Notes the first non-finite element of each of the first rows that have one."""
        found, row = self.counts.bad, self._row
        if len(found) >= MAX_BAD_PLACES:
            return
        first = number * (CHUNK // self._size)
        places = np.flatnonzero(bad)
        start = 0
        while start < places.size and len(found) < MAX_BAD_PLACES:
            place = first + int(places[start])
            if not found or found[-1] // row != place // row:
                found.append(place)
            start = int(np.searchsorted(places, (place // row + 1) * row - first))

    def _add_float8(self, codes: Array, number: int) -> None:
        counts, table = self.counts, _FLOAT8[self._dtype]
        counts.exact += codes.size
        of_code = np.bincount(codes, minlength=256)
        finite = np.isfinite(table)
        nan = int(of_code[np.isnan(table)].sum())
        inf = int(of_code[np.isinf(table)].sum())
        counts.nan += nan
        counts.inf += inf
        counts.negative_inf += int(of_code[table == -math.inf].sum())
        counts.zero += int(of_code[table == 0].sum())
        values = table[(of_code > 0) & finite]
        if values.size:
            counts.most = max(counts.most, float(values.max()))
            counts.least = min(counts.least, float(values.min()))
            counts.square += float((of_code[finite] * table[finite] ** 2).sum())
        if nan or inf:
            self._note_rows(~finite[codes], number)

    def _add_integers(self, nbytes: int) -> None:
        counts = self.counts
        dtype = _INTEGERS.get(self._dtype, self._dtype)
        values = self.buffers.bytes[:nbytes].view("uint8" if "float8" in dtype else dtype)
        counts.exact += values.size
        counts.most = max(counts.most, float(values.max()))
        counts.least = min(counts.least, float(values.min()))
        counts.zero += int(values.size - np.count_nonzero(values))
        wide = values.astype(np.float64)
        counts.square += float(np.dot(wide, wide))


_INTEGERS = {"bool": "uint8", "qint8": "int8", "quint8": "uint8", "qint32": "int32"}


def _float8_values(dtype: str) -> Array:
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
    name: _float8_values(name)
    for name in dtypes.SIZES
    if name.startswith("float8_e") and "m0" not in name
}


def _value_of(bits: int, dtype: str) -> float:
    """The float with these bits."""
    if dtype == "bfloat16":
        return float(np.uint32(bits << 16).view(np.float32))
    size = dtypes.SIZES[dtype]
    return float(_UNSIGNED[size](bits).view(dtype))


def _extremes(bits: Array, kind: _Kind) -> tuple[int, int]:
    """The bits of the greatest and of the least of finite elements."""
    highest, lowest = int(bits.view(_SIGNED[kind.size]).max()), int(bits.max())
    if highest < 0 or lowest < kind.sign:
        closest = int(bits.min())
        highest = highest if highest >= 0 else closest
        lowest = lowest if lowest >= kind.sign else closest
    return highest, lowest


def _squares_of_halves(buffers: CountBuffers, kind: _Kind, count: int) -> float:
    """The sum of squares of `count` pairs of 16-bit elements.

    Shifting moves the bits of either half of a word to their place in a float32. A wrong sign does
    not matter: it is squared.
    """
    pairs = buffers.bytes[: count * 4].view(np.uint32)
    words = buffers.words[:count]
    values = words.view(np.float32)
    if kind.infinite == 0x7F80:
        np.bitwise_and(pairs, np.uint32(0xFFFF0000), out=words)
        square = _sum_of_squares(values, values)
        np.left_shift(pairs, np.uint32(16), out=words)
        return square + _sum_of_squares(values, values)
    rebias = np.float32(2.0**112)  # the exponent of float16 has bias 15, of float32 127
    np.right_shift(pairs, np.uint32(3), out=words)
    np.bitwise_and(words, np.uint32(0x0FFFE000), out=words)
    np.multiply(values, rebias, out=values)
    square = _sum_of_squares(values, values)
    np.left_shift(pairs, np.uint32(17), out=words)
    np.right_shift(words, np.uint32(4), out=words)
    np.multiply(values, rebias, out=values)
    return square + _sum_of_squares(values, values)


def _sum_of_squares(values: Array, spare: Array) -> float:
    """The sum of squares; `spare` is overwritten if they exceed the range of the type."""
    total = float(np.dot(values, values))
    if _SMALLEST_SQUARES < total < math.inf:
        return total
    peak = float(np.abs(values, out=spare).max())
    if peak == 0.0:
        return 0.0
    np.divide(values, values.dtype.type(peak), out=spare)
    # A sum beyond float64 is set to its largest value.
    return min(float(np.dot(spare, spare)) * peak * peak, 1.7e308)


def _digest_of(buffers: CountBuffers, nbytes: int, number: int) -> int:
    """A sum that depends on the place of the chunk, but not on the order of adding."""
    tail = -nbytes % 8
    if tail:
        buffers.bytes[nbytes : nbytes + tail] = 0
    words = buffers.bytes[: nbytes + tail].view(np.uint64)
    return int(np.add.reduce(words)) * (2 * number + 1) & WORD
