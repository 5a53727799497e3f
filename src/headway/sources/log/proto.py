"""The wire format of protocol buffers, as far as logs need it: fields by number, nothing more."""

from __future__ import annotations

from collections.abc import Iterator


class BadProto(ValueError):
    """The bytes are no message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place after it."""
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
    """A number of 64 bits that may be negative."""
    return value - (1 << 64) if value >= 1 << 63 else value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value): a whole number, or the bytes of anything that is none."""
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
