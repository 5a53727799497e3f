"""Counts the values in one chunk of a tensor's bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.checkpoints import dtypes

CHUNK = 1 << 19
"""Bytes at a time: fits a second-level cache, with a scratch array of the same size."""
ROWS = 8
"""Bad rows that are named."""
WORD = (1 << 64) - 1
Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class ValueTally:
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

    def add(self, other: ValueTally) -> None:
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
        self.digest = (self.digest + other.digest) & WORD
        self.bad = sorted({*self.bad, *other.bad})[: 4 * ROWS]


class CountBuffers:
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


KINDS = {
    "float64": _Kind(8, 0x7FF0 << 48, 1 << 63),
    "float32": _Kind(4, 0x7F800000, 1 << 31),
    "float16": _Kind(2, 0x7C00, 1 << 15),
    "bfloat16": _Kind(2, 0x7F80, 1 << 15),
}
UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
ONE: dict[int, Any] = {2: np.uint16(1), 4: np.uint32(1), 8: np.uint64(1)}
_FROM_HALF = np.float32(2.0**112)
_UPPER, _HALF = np.uint32(0xFFFF0000), np.uint32(16)
GREATEST = np.maximum.reduce
SMALLEST_SQUARES = 1e-24
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


FLOAT8 = {
    name: _float8(name) for name in dtypes.SIZES if name.startswith("float8_e") and "m0" not in name
}


def value_of(bits: int, dtype: str) -> float:
    """The float a pattern of bits stands for."""
    if dtype == "bfloat16":
        return float(np.uint32(bits << 16).view(np.float32))
    kind = UNSIGNED[dtypes.SIZES[dtype]]
    form: Any = {2: np.float16, 4: np.float32, 8: np.float64}[dtypes.SIZES[dtype]]
    return float(kind(bits).view(form))


def count_floats(
    scratch: CountBuffers, nbytes: int, dtype: str, into: ValueTally, at: int, row: int, zeros: bool
) -> None:
    """Add the chunk in the scratch to a tally; `at`: its first element, `row`: a row's length."""
    if dtype in FLOAT8:
        _count_float8(scratch.bytes[:nbytes], dtype, into, at, row)
        return
    kind = KINDS[dtype]
    bits = scratch.bytes[:nbytes].view(UNSIGNED[kind.size])
    signed = int(GREATEST(bits.view(SIGNED[kind.size])))
    unsigned = int(GREATEST(bits))
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
        into.most = max(into.most, value_of(most, dtype))
    if unsigned < kind.sign or least > into.least_bits:
        into.least_bits = max(unsigned, into.least_bits) if unsigned >= kind.sign else -1
        into.least = min(into.least, value_of(least, dtype))
    _count_finite(scratch, bits, dtype, into, zeros)


def _count_finite(
    scratch: CountBuffers, bits: Array, dtype: str, into: ValueTally, zeros: bool
) -> None:
    """Zeros and squares of a chunk without a bad element."""
    count = bits.size
    if zeros:
        # The sign is shifted out: a negative zero is one, too.
        shifted = scratch.words.view(bits.dtype)[:count]
        np.left_shift(bits, ONE[bits.itemsize], out=shifted)
        into.some_zero += count - int(np.count_nonzero(shifted))
        into.some += count
    if dtype in ("float32", "float64"):
        values = bits.view(dtype)
        into.square += _squares(values, scratch.words.view(dtype)[:count])
        return
    if count % 2:
        scratch.bytes[count * 2 : count * 2 + 2] = 0
    into.square += halves(scratch, KINDS[dtype], (count + 1) // 2)


def halves(scratch: CountBuffers, kind: _Kind, count: int = CHUNK // 4) -> float:
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
    if SMALLEST_SQUARES < total < math.inf:
        return total
    peak = float(np.abs(values, out=spare).max())
    if peak == 0.0:
        return 0.0
    np.divide(values, values.dtype.type(peak), out=spare)
    # Squares beyond float64 are left at its greatest.
    return min(float(np.dot(spare, spare)) * peak * peak, 1.7e308)


def _count_bad(
    scratch: CountBuffers, bits: Array, dtype: str, into: ValueTally, at: int, row: int
) -> None:
    """A chunk with a NaN or an infinity in it. The bad elements are set to 0 on the way."""
    kind = KINDS[dtype]
    form = UNSIGNED[kind.size]
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
    highest, lowest = int(GREATEST(bits.view(SIGNED[kind.size]))), int(GREATEST(bits))
    if highest <= 0 or lowest <= kind.sign:  # of one sign: the zeros put in are no extremes
        left = bits[good]
        highest, lowest = _ends(left, kind)
    into.most = max(into.most, value_of(highest, dtype))
    into.least = min(into.least, value_of(lowest, dtype))
    _count_finite(scratch, bits, dtype, into, zeros=False)


def _ends(bits: Array, kind: _Kind) -> tuple[int, int]:
    """The bits of the greatest and of the least of finite elements."""
    highest, lowest = int(bits.view(SIGNED[kind.size]).max()), int(bits.max())
    if highest < 0 or lowest < kind.sign:
        closest = int(bits.min())
        highest = highest if highest >= 0 else closest
        lowest = lowest if lowest >= kind.sign else closest
    return highest, lowest


def _note_rows(places: Array, into: ValueTally, at: int, row: int) -> None:
    """The first bad element of each of the first bad rows."""
    start = 0
    while start < places.size and len(into.bad) < 4 * ROWS:
        place = at + int(places[start])
        if not into.bad or into.bad[-1] // row != place // row:
            into.bad.append(place)
        start = int(np.searchsorted(places, (place // row + 1) * row - at))


def _count_float8(codes: Array, dtype: str, into: ValueTally, at: int, row: int) -> None:
    into.looked += codes.size
    counts = np.bincount(codes, minlength=256)
    table = FLOAT8[dtype]
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


def count_whole(scratch: CountBuffers, nbytes: int, dtype: str, into: ValueTally) -> None:
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


def digest_of(scratch: CountBuffers, nbytes: int, number: int) -> int:
    """A sum that depends on the place of the chunk, not on the order of adding."""
    tail = -nbytes % 8
    if tail:
        scratch.bytes[nbytes : nbytes + tail] = 0
    words = scratch.bytes[: nbytes + tail].view(np.uint64)
    return int(np.add.reduce(words)) * (2 * number + 1) & WORD


def swap(scratch: CountBuffers, nbytes: int, dtype: str) -> None:
    size = dtypes.SIZES[PARTS.get(dtype, dtype)]
    if size > 1:
        scratch.bytes[:nbytes].view(UNSIGNED[size]).byteswap(inplace=True)
