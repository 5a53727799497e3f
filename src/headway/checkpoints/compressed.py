"""Compressed files: gzip, bzip2, xz, zlib, and several of them after each other."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any

MAX_UNPACKED = 1 << 27
"""Bytes of a compressed file that are looked at."""
ERRORS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
_PIECE = 512


def unpacker(head: bytes) -> Any:
    """Decompresses what begins like this; None if it is not compressed."""
    if head[:2] == b"\x1f\x8b":
        return zlib.decompressobj(31)
    if head[:3] == b"BZh":
        return bz2.BZ2Decompressor()
    if head[:6] == b"\xfd7zXZ\0" or head[:3] == b"]\0\0":
        return lzma.LZMADecompressor(memlimit=1 << 27)
    if head[:1] == b"\x78" and len(head) > 1 and head[1] in (0x01, 0x5E, 0x9C, 0xDA):
        return zlib.decompressobj()
    return None


def unpack(data: bytes) -> tuple[bytes, bool]:
    """The decompressed bytes of all members after each other; whether nothing is left."""
    made = b""
    while data and len(made) < MAX_UNPACKED and (decoder := unpacker(data[:_PIECE])) is not None:
        try:
            made += decoder.decompress(data, MAX_UNPACKED - len(made))
        except ERRORS:
            return made or _beginning(data), False
        if not decoder.eof:
            return made, False
        data = decoder.unused_data
    return made, not data


def _beginning(data: bytes) -> bytes:
    """What can be decompressed of something damaged."""
    decoder, made = unpacker(data[:_PIECE]), b""
    for at in range(0, len(data), _PIECE):
        try:
            made += decoder.decompress(data[at : at + _PIECE])
        except ERRORS:
            break
    return made
