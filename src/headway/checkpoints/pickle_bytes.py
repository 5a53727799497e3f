"""The bytes of a pickle, a window at a time; large ones are located and not read."""

from __future__ import annotations

import io
import struct
from typing import Any, BinaryIO

from headway.checkpoints.stubs import Blob, Damaged, Located, TooMuch

MAX_LINE = 1 << 16
MAX_TEXT = 1 << 26
"""Bytes of one string."""
BIG = 1 << 20
"""Bytes objects from here on are not read, only located."""
WINDOW = 1 << 20


class PickleBytes:
    """Reads from where the last reading ended. Raises `Damaged` where there is not enough."""

    def __init__(
        self, source: bytes | BinaryIO, *, start: int = 0, limit: int | None = None
    ) -> None:
        self.file: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else source
        self._base = start
        self._data = b""
        self._at = 0
        self._limit = limit

    @property
    def position(self) -> int:
        """Where in the source the machine is."""
        return self._base + self._at

    def _refill(self, least: int) -> None:
        self._base += self._at
        self._at = 0
        self.file.seek(self._base)
        want = max(WINDOW, least)
        if self._limit is not None:
            want = min(want, max(self._limit - self._base, 0))
        self._data = self.file.read(want)
        if len(self._data) < least:
            raise Damaged(f"it ends at byte {self._base + len(self._data)}, in the middle")

    def _take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            self._refill(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, form: str, size: int) -> int:
        value: int = struct.unpack(form, self._take(size))[0]
        return value

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            self._refill(1)
            end = self._data.find(b"\n", 0, MAX_LINE)
        if end < 0 or end - self._at > MAX_LINE:
            raise Damaged(f"no end of a line within {MAX_LINE} bytes after byte {self.position}")
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    def _text(self, length: int) -> str:
        if length > MAX_TEXT:
            raise TooMuch(f"a text of {length} bytes at byte {self.position} (limit {MAX_TEXT})")
        return self._take(length).decode("utf-8", "surrogatepass")

    def _bytes(self, length: int) -> Any:
        at = self.position
        if length < BIG:
            value = Located(self._take(length))
            value.at = at
            return value
        # The bytes are not read: only whether they are there.
        self.file.seek(at + length - 1)
        if not self.file.read(1) or (self._limit is not None and at + length > self._limit):
            raise Damaged(f"{length} bytes announced at byte {at}, not all of them there")
        self._base, self._data, self._at = at + length, b"", 0
        return Blob(at, length)
