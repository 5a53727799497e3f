"""The directory of a zip archive, checked before use."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

# The directory. Only what checkpoints need: stored and deflated entries, zip64. Nothing is
# extracted, so unusual names do no harm.

MAX_ENTRIES = 1_000_000
MAX_DIRECTORY = 1 << 28
MAX_INFLATED = 1 << 25
"""Bytes of a compressed entry that is read at once."""
MAX_RATIO = 1032
"""Largest possible compression ratio of deflate."""
BOMB, BOMB_RATIO = 1 << 30, 200
"""An entry above this size and this ratio is not decompressed."""
STORED, DEFLATED = 0, 8
MAGIC = b"PK\x03\x04"


class BadZip(Exception):
    """The archive is truncated or inconsistent."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One entry and where its data is."""

    name: str
    method: int
    offset: int
    """Where its data starts."""
    packed: int
    """Bytes in the file."""
    size: int
    """Bytes after decompression."""


def read_directory(file: BinaryIO, size: int, start: int = 0) -> dict[str, ZipEntry]:
    """The entries by name, in the order of the archive, of `size` bytes from `start`."""
    count, length, offset = _end(file, size, start)
    if count > MAX_ENTRIES or length > MAX_DIRECTORY:
        raise BadZip(f"{count} entries, {length} bytes of directory (limit {MAX_ENTRIES})")
    if offset + length > size:
        raise BadZip(f"its directory ends at byte {offset + length} of {size}")
    file.seek(start + offset)
    data = file.read(length)
    entries: dict[str, ZipEntry] = {}
    taken: list[tuple[int, int, str]] = []
    at = 0
    for _ in range(count):
        if data[at : at + 4] != b"PK\x01\x02" or at + 46 > len(data):
            raise BadZip("its directory is damaged")
        flags, method = struct.unpack_from("<HH", data, at + 8)
        packed, full = struct.unpack_from("<II", data, at + 20)
        names, extras, comments = struct.unpack_from("<HHH", data, at + 28)
        header = struct.unpack_from("<I", data, at + 42)[0]
        raw = data[at + 46 : at + 46 + names]
        name = raw.decode("utf-8", "replace")
        extra = data[at + 46 + names : at + 46 + names + extras]
        full, packed, header = _wide(extra, full, packed, header)
        at += 46 + names + extras + comments
        if flags & 1:
            raise BadZip(f"entry {name!r} is encrypted")
        where = _data_of(file, start, header, size, raw)
        if where + packed > size:
            raise BadZip(f"entry {name!r} ends at byte {where + packed} of {size}")
        if method == STORED and packed != full:
            raise BadZip(f"entry {name!r} is stored, but has {packed} bytes instead of {full}")
        if method == DEFLATED and full > (packed + 64) * MAX_RATIO:
            raise BadZip(f"entry {name!r}: {packed} bytes cannot decompress to {full}")
        if is_bomb(method, packed, full):
            raise BadZip(
                f"entry {name!r}: {packed} bytes would decompress to {full} (limit: "
                f"{BOMB_RATIO} times as many)"
            )
        if name in entries:
            raise BadZip(f"two entries are called {name!r}: programs differ in which one they read")
        entries[name] = ZipEntry(name, method, start + where, packed, full)
        taken.append((where, packed, name))
    if at != length:
        raise BadZip(f"its directory has more than the {count} entries that it counts")
    packed, full = sum(e.packed for e in entries.values()), sum(e.size for e in entries.values())
    if is_bomb(DEFLATED, packed, full):
        raise BadZip(
            f"its entries of {packed} bytes would decompress to {full} (limit: {BOMB_RATIO} times "
            "as many)"
        )
    taken.sort()
    for (a, length_a, name), (b, _, other) in itertools.pairwise(taken):
        if a + length_a > b and length_a:
            raise BadZip(f"entries {name!r} and {other!r} overlap")
    return entries


def end_of(file: BinaryIO, size: int, start: int = 0) -> int:
    """Where the last record of an archive ends; a comment and whatever else follows it."""
    tail = min(size, 22 + 65535)
    file.seek(start + size - tail)
    at = file.read(tail).rfind(b"PK\x05\x06")
    return start + size - tail + at + 22 if at >= 0 else start + size


def is_bomb(method: int, packed: int, full: int) -> bool:
    """Whether an entry is a decompression bomb."""
    return method == DEFLATED and full >= BOMB and full > packed * BOMB_RATIO


def _end(file: BinaryIO, size: int, start: int) -> tuple[int, int, int]:
    """(entries, bytes of the directory, its offset)."""
    tail = min(size, 22 + 65535)
    file.seek(start + size - tail)
    data = file.read(tail)
    at = data.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(data):
        raise BadZip("it has no directory at its end: the file is truncated")
    count, length, offset = struct.unpack_from("<HII", data, at + 10)
    locator = at - 20
    if locator >= 0 and data[locator : locator + 4] == b"PK\x06\x07":
        place = struct.unpack_from("<Q", data, locator + 8)[0]
        if place + 56 > size:
            raise BadZip("its directory is outside the file")
        file.seek(start + place)
        record = file.read(56)
        if record[:4] != b"PK\x06\x06" or len(record) < 56:
            raise BadZip("its directory is damaged")
        count, length, offset = struct.unpack_from("<QQQ", record, 32)
    else:
        place = size - tail + at
    if offset + length != place:
        raise BadZip("its directory is not just before its end: programs differ in what they read")
    return count, length, offset


def _wide(extra: bytes, full: int, packed: int, header: int) -> tuple[int, int, int]:
    """The sizes of a large entry, from its extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            values = [value for (value,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8])]
            if full == 0xFFFFFFFF and values:
                full = values.pop(0)
            if packed == 0xFFFFFFFF and values:
                packed = values.pop(0)
            if header == 0xFFFFFFFF and values:
                header = values.pop(0)
        at += 4 + length
    return full, packed, header


def _data_of(file: BinaryIO, start: int, header: int, size: int, name: bytes) -> int:
    if header + 30 > size:
        raise BadZip(f"an entry starts at byte {header} of {size}")
    file.seek(start + header)
    local = file.read(30 + len(name))
    if local[:4] != MAGIC or len(local) < 30:
        raise BadZip(f"no entry at byte {header}, where the directory has one")
    names, extras = struct.unpack_from("<HH", local, 26)
    if names != len(name) or local[30:] != name:
        raise BadZip(f"entry {name[:200]!r} has another name at byte {header}")
    return int(header + 30 + names + extras)


def local_name(file: BinaryIO, at: int) -> tuple[str, int] | None:
    """(name, start of its data) of the entry with its header here; None if there is none."""
    file.seek(at)
    local = file.read(30)
    if len(local) < 30 or local[:4] != MAGIC:
        return None
    names, extras = struct.unpack_from("<HH", local, 26)
    name = file.read(names)
    if len(name) < names:
        return None
    return name.decode("utf-8", "replace"), at + 30 + names + extras


def entry_chunks(file: BinaryIO, entry: ZipEntry, size: int = 1 << 16) -> Iterator[bytes]:
    """The decompressed bytes of an entry; never more than the directory says."""
    file.seek(entry.offset)
    left = entry.packed
    if entry.method == STORED:
        while left and (data := file.read(min(size, left))):
            left -= len(data)
            yield data
        return
    if entry.method != DEFLATED:
        raise BadZip(f"entry {entry.name!r} has an unsupported compression method ({entry.method})")
    unpack = zlib.decompressobj(-15)
    total = 0
    try:
        while left and (data := file.read(min(size, left))):
            left -= len(data)
            while data and not unpack.eof:
                out = unpack.decompress(data, 1 << 18)
                total += len(out)
                if total > entry.size:
                    raise BadZip(
                        f"entry {entry.name!r} decompresses to more than its {entry.size} bytes"
                    )
                if out:
                    yield out
                data = unpack.unconsumed_tail
    except zlib.error as error:
        raise BadZip(f"entry {entry.name!r} cannot be decompressed: {error}") from error


def read_entry(file: BinaryIO, entry: ZipEntry, limit: int = MAX_INFLATED) -> bytes:
    """A whole entry."""
    if entry.size > limit:
        raise BadZip(f"entry {entry.name!r} has {entry.size} bytes (limit {limit})")
    return b"".join(entry_chunks(file, entry))
