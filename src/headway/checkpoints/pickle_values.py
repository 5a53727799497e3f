"""Values of a pickle that is not executed: names, stubs, byte ranges; and its byte reader."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

KEY_DEPTH = 8


class Damaged(Exception):
    """The pickle is truncated or invalid."""


class TooMuch(Damaged):
    """The pickle exceeds a limit that no checkpoint reaches."""


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function by its name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Stub:
    """An object whose class is only a name."""

    module: str
    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: dict[Any, Any] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes in its state."""
        found: dict[str, Any] = {}
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        for state in states[:2]:
            if isinstance(state, dict):
                found.update((key, value) for key, value in state.items() if isinstance(key, str))
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


class Located(bytes):
    """Bytes that remember where in the stream they were."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes too many to be read: where they are."""

    at: int
    length: int

    def __len__(self) -> int:
        return self.length


@dataclass
class Loaded:
    """A pickle that was interpreted."""

    value: Any
    end: int
    """Position after the last opcode."""
    requested: list[Global] = field(default_factory=list)
    """Every name that the stream requests, in order, once."""
    called: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Calls of something that is not a name: `(what, arguments)`."""
    calls: dict[Global, tuple[Any, ...]] = field(default_factory=dict)
    """The names that would be called, with the arguments of the first call."""
    damage: str | None = None
    """Why it could not be interpreted to the end; None if it could."""


def hashable(value: Any, depth: int = 0) -> bool:
    """Whether it may be a key; hashing deeply nested tuples would overflow the stack."""
    if isinstance(value, (tuple, frozenset)):
        if isinstance(value, frozenset):
            return True
        return depth < KEY_DEPTH and len(value) < 64 and all(hashable(v, depth + 1) for v in value)
    return not isinstance(value, (list, dict, set, bytearray)) and value.__hash__ is not None


# Reading the bytes of a pickle in windows; large byte strings are located and not read.

MAX_LINE = 1 << 16
MAX_TEXT = 1 << 26
"""Bytes of one string."""
BIG = 1 << 20
"""Size from which byte strings are located and not read."""
WINDOW = 1 << 20


class PickleBytes:
    """Reads bytes sequentially. Raises `Damaged` at the end."""

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
        """Position in the source."""
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
            raise Damaged(f"it ends early, at byte {self._base + len(self._data)}")

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
            raise Damaged(f"no line end within {MAX_LINE} bytes after byte {self.position}")
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
        # The bytes are not read; only their presence is checked.
        self.file.seek(at + length - 1)
        if not self.file.read(1) or (self._limit is not None and at + length > self._limit):
            raise Damaged(f"{length} bytes expected at byte {at}, but the file ends before")
        self._base, self._data, self._at = at + length, b"", 0
        return Blob(at, length)


MAX_PLAIN_DEPTH = 8
_NOTHING = object()


def plain_value(value: Any) -> Any:
    """The value without stubs: an enum member becomes its value, a class its name."""
    found = _plain(value, 0)
    return None if found is _NOTHING else found


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if type(value) not in (bool, int, float, str, type(None)) else value
    if depth > MAX_PLAIN_DEPTH:
        return _NOTHING
    if isinstance(value, Global):
        return str(value)
    if isinstance(value, dict):
        pairs = ((key, _plain(inside, depth + 1)) for key, inside in value.items())
        return {str(key): inside for key, inside in pairs if inside is not _NOTHING}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [inside for item in value if (inside := _plain(item, depth + 1)) is not _NOTHING]
    if isinstance(value, Stub):
        attributes = {**value.attributes, **value.pairs}
        if "_content" in attributes and "_metadata" in attributes:  # OmegaConf
            return _plain(attributes["_content"], depth + 1)
        if "_val" in attributes and "_metadata" in attributes:
            return _plain(attributes["_val"], depth + 1)
        if attributes:
            return _plain(attributes, depth)
        if len(value.args) == 1:
            return _plain(value.args[0], depth + 1)
    return _NOTHING
