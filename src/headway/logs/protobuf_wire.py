"""Decodes the protobuf wire format, and the scalar tensors in TensorBoard's messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np


class BadProto(ValueError):
    """The bytes are not a message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, position after it)."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BadProto("a number has no end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def signed(value: int) -> int:
    """A 64-bit number as signed."""
    return value - (1 << 64) if value >= 1 << 63 else value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value): an int for varints, else bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise BadProto(f"unknown kind of field: {kind}")
        if length > end - at:
            raise BadProto(f"a field of {length} bytes, and {end - at} are left")
        yield key >> 3, data[at : at + length]
        at += length


def texts(data: bytes, number: int) -> Iterator[str]:
    """The strings in one field."""
    for found, value in fields(data):
        if found == number and isinstance(value, bytes):
            yield value.decode("utf-8", errors="replace")


def parts(data: bytes, number: int) -> Iterator[bytes]:
    """The messages in one field."""
    for found, value in fields(data):
        if found == number and isinstance(value, bytes):
            yield value


DOUBLE, FLOAT = struct.Struct("<d"), struct.Struct("<f")


_TENSOR_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2", 17: "<u2", 22: "<u4", 23: "<u8"}


_BFLOAT16 = 14


def decode_scalar_tensor(tensor: bytes) -> float | None:
    """The value of a tensor with one element."""
    kind, dims, content = 0, [], None
    numbers: list[float] = []
    for number, part in fields(tensor):
        if number == 1 and isinstance(part, int):
            kind = part
        elif number == 2 and isinstance(part, bytes):
            for dim in parts(part, 2):
                dims += [size for n, size in fields(dim) if n == 1]
        elif number == 4 and isinstance(part, bytes):
            content = part
        elif number == 5 and isinstance(part, bytes) and len(part) == 4:
            numbers.append(FLOAT.unpack(part)[0])
        elif number == 6 and isinstance(part, bytes) and len(part) == 8:
            numbers.append(DOUBLE.unpack(part)[0])
        elif number in (7, 10, 13):
            numbers += _whole_numbers(part, kind if number == 13 else 0)
    if any(size != 1 for size in dims):
        return None
    if (
        content is not None
        and kind in _TENSOR_TYPES
        and len(content) == np.dtype(_TENSOR_TYPES[kind]).itemsize
    ):
        return float(np.frombuffer(content, dtype=_TENSOR_TYPES[kind])[0])
    if content is not None and kind == _BFLOAT16 and len(content) == 2:
        return float(FLOAT.unpack(b"\0\0" + content)[0])
    return numbers[0] if len(numbers) == 1 else None


def _whole_numbers(part: int | bytes, half: int) -> list[float]:
    """Integers, packed or not; for half types, the bits of the values."""
    found = [part] if isinstance(part, int) else []
    if isinstance(part, bytes) and len(part) <= 20:
        at = 0
        while at < len(part):
            value, at = varint(part, at)
            found.append(value)
    if half == _BFLOAT16:
        return [FLOAT.unpack(struct.pack("<I", (bits & 0xFFFF) << 16))[0] for bits in found]
    if half:
        return [struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0] for bits in found]
    return [float(signed(value)) for value in found]
