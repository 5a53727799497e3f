"""Damage of the kinds files suffer, and of the kinds an attacker would try."""

from __future__ import annotations

import random
import struct

_NUMBERS = [
    0,
    1,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 40,
    1 << 62,
    (1 << 64) - 1,
]
_WORDS = [
    *(b"nan", b"NaN", b"inf", b"-Infinity", b"1e999", b"-0.0", b"null", b"true", b"{", b"}", b"["),
    *(b"]" * 3, b'"', b"'", b",", b"|", b"=", b":", b"\t", b"\r", b"\n", b"\0", b"\x1b[31m", b"%"),
    *(
        b"9" * 400,
        b"-",
        b".",
        b"[" * 3000,
        b"{" * 3000,
        b"\xff\xfe",
        "٣".encode(),
        b"step",
        b"loss",
    ),
    *(b"Epoch", b"iteration", b"../../etc/passwd", b"/" * 50, b"a" * 5000, b"(", b")", b"\\u0000"),
    *(b"cos\nsystem\n", b"\x80\x04", b"\x93", b"R.", b"\x81", b"b.", b"(t", b"]", b"\x94h\x00"),
]


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A file with one to four things wrong with it."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(_KINDS)(out, other, rng)
    return bytes(out[: 1 << 20])


def _at(out: bytearray, rng: random.Random) -> int:
    # Headers and directories are at the ends.
    near = rng.random()
    if near < 0.25:
        return rng.randrange(min(len(out), 200) + 1)
    if near < 0.4:
        return max(len(out) - rng.randrange(min(len(out), 300) + 1), 0)
    return rng.randrange(len(out) + 1)


def _flip(out: bytearray, other: bytes, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8, 40))):
        if out:
            out[min(_at(out, rng), len(out) - 1)] ^= 1 << rng.randrange(8)


def _byte(out: bytearray, other: bytes, rng: random.Random) -> None:
    if out:
        out[min(_at(out, rng), len(out) - 1)] = rng.choice(
            (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
        )


def _cut(out: bytearray, other: bytes, rng: random.Random) -> None:
    del out[_at(out, rng) :]


def _drop(out: bytearray, other: bytes, rng: random.Random) -> None:
    at = _at(out, rng)
    del out[at : at + rng.choice((1, 4, 8, 64, 1000))]


def _double(out: bytearray, other: bytes, rng: random.Random) -> None:
    at, size = _at(out, rng), rng.choice((1, 4, 30, 500))
    out[at:at] = out[at : at + size] * rng.choice((1, 2, 50))


def _number(out: bytearray, other: bytes, rng: random.Random) -> None:
    at, value = _at(out, rng), rng.choice(_NUMBERS)
    raw = struct.pack(rng.choice("<>") + "Q", value)
    raw = raw[: rng.choice((1, 2, 4, 8))] if rng.random() < 0.5 else raw[-rng.choice((2, 4, 8)) :]
    out[at : at + len(raw)] = raw


def _word(out: bytearray, other: bytes, rng: random.Random) -> None:
    at = _at(out, rng)
    out[at : at + rng.choice((0, 0, 3))] = rng.choice(_WORDS)


def _splice(out: bytearray, other: bytes, rng: random.Random) -> None:
    start = rng.randrange(len(other) + 1)
    at, size = _at(out, rng), rng.choice((4, 64, 2000))
    out[at : at + rng.choice((0, size))] = other[start : start + size]


def _swap(out: bytearray, other: bytes, rng: random.Random) -> None:
    a, b, size = _at(out, rng), _at(out, rng), rng.choice((1, 8, 100))
    out[a : a + size], out[b : b + size] = out[b : b + size], out[a : a + size]


def _zeros(out: bytearray, other: bytes, rng: random.Random) -> None:
    at, size = _at(out, rng), rng.choice((1, 8, 512, 4096))
    out[at : at + size] = bytes(min(size, max(len(out) - at, 0)))


_KINDS = (
    _flip,
    _flip,
    _byte,
    _cut,
    _drop,
    _double,
    _number,
    _number,
    _word,
    _splice,
    _swap,
    _zeros,
)
