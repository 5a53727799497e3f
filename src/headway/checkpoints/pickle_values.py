"""Values of a pickle that is not executed: names, stubs, byte ranges; and its byte reader."""

from __future__ import annotations

import codecs
import io
import itertools
import re
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

MAX_KEY_PARTS = 500
"""Parts of a key, nested ones included; no checkpoint has more than a few."""


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
    stated: bool = False
    """Whether its attributes were set."""

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
    """What no framework writes, and its arguments: the result of a call is called, say."""
    calls: dict[Global, tuple[Any, ...]] = field(default_factory=dict)
    """The names that would be called, with the arguments of the first call."""
    damage: str | None = None
    """Why it could not be interpreted to the end; None if it could."""
    doubtful: list[str] = field(default_factory=list)
    """Attributes of objects that only loading would create."""
    not_judged: bool = False
    """Whether a limit was reached: the rest may contain anything."""

    def add(self, other: Loaded) -> None:
        """Adds the names and calls of another pickle that is loaded with this one."""
        self.requested = list(dict.fromkeys([*self.requested, *other.requested]))
        self.called = [*self.called, *other.called]
        self.calls = {**other.calls, **self.calls}
        self.doubtful = [*self.doubtful, *other.doubtful]
        self.not_judged = self.not_judged or other.not_judged


def short_text(value: Any, limit: int = 500) -> str:
    """A text for a name or a key. Of containers only the type: their text may have no end."""
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, bytes):
        return value[:limit].decode("latin1")
    if value is None or isinstance(value, (bool, float)):
        return str(value)
    if isinstance(value, int) and value.bit_length() < 256:
        return str(value)
    return str(value)[:limit] if isinstance(value, Global) else type(value).__name__


def hashable(value: Any) -> bool:
    """Whether Python could hash it. Raises `TooMuch` where that would take too long.

    A tuple that contains itself many times over is small, and its hash visits every copy.
    """
    waiting, visited = [value], 0
    while waiting:
        visited += 1
        if visited > MAX_KEY_PARTS:
            raise TooMuch(f"a key of more than {MAX_KEY_PARTS} parts")
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting.extend(part[: MAX_KEY_PARTS + 1])
        elif isinstance(part, (list, dict, set, bytearray)) or part.__hash__ is None:
            return False
    return True


def put_item(into: dict[Any, Any], key: Any, value: Any) -> None:
    """Adds an item to a dict, unless its key has no hash."""
    if hashable(key):
        into[key] = value


def rescue(levels: list[list[Any]]) -> Any:
    """The outermost container that was built before a damage, from the stacks between the marks."""
    root = next((v for level in levels for v in level if isinstance(v, (dict, list, Stub))), None)
    if root is None:
        return None
    # The items after the last mark belong to the container just below that mark.
    for below, above in itertools.pairwise(levels):
        if below and isinstance(below[-1], dict):
            for key, value in zip(above[::2], above[1::2], strict=False):
                put_item(below[-1], key, value)
        elif below and isinstance(below[-1], list):
            below[-1].extend(above)
    return root


# Reading the bytes of a pickle in windows; large byte strings are located and not read.

MAX_DIGITS = 4_000
MAX_TEXT = 1 << 26
"""Bytes of one string."""
MAX_KEPT = 1 << 28
"""Bytes of all strings that are kept."""
BIG = 1 << 17
"""Size from which byte strings are located and not read."""
WINDOW = 1 << 20
_OCTAL = re.compile(rb"([+-]?)0+([0-7]+)")
"""A number as the C library reads it, and with it Python's unpickler."""


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
        self._frame_end = 0
        self._kept = 0
        self.cut_frames = False
        """Whether a frame ends within an instruction. Unpicklers differ in how they read that, and
        no pickler writes it."""

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

    def _begin_frame(self, length: int) -> None:
        self._check_frame(length)
        self._frame_end = self.position + length

    def _check_frame(self, count: int) -> None:
        """Notes an instruction that a frame cuts in two."""
        if self.position < self._frame_end < self.position + count:
            self.cut_frames = True

    def _take(self, count: int) -> bytes:
        if self._frame_end:
            self._check_frame(count)
        if self._at + count > len(self._data):
            self._refill(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def skip(self, count: int) -> None:
        """Leaves out bytes that are no opcodes."""
        self._at += count

    def _number(self, form: str, size: int) -> int:
        value: int = struct.unpack(form, self._take(size))[0]
        return value

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            self._refill(1)
            end = self._data.find(b"\n")
        if end < 0 and len(self._data) >= WINDOW:
            raise TooMuch(f"a line of more than {WINDOW} bytes at byte {self.position}")
        if end < 0:
            raise Damaged(f"it ends within a line, at byte {self.position}")
        line = self._data[self._at : end]
        self._keep_bytes(len(line))
        if self._frame_end:
            self._check_frame(len(line) + 1)
        self._at = end + 1
        return line

    def _keep_bytes(self, length: int) -> None:
        self._kept += length
        if self._kept > MAX_KEPT:
            raise TooMuch(f"more than {MAX_KEPT} bytes of text")

    def _text(self, length: int) -> str:
        self._keep_bytes(length)
        if length > MAX_TEXT:
            raise TooMuch(f"a text of {length} bytes at byte {self.position} (limit {MAX_TEXT})")
        return self._take(length).decode("utf-8", "surrogatepass")

    def _long(self, length: int) -> int:
        if not 0 <= length <= MAX_DIGITS:
            raise TooMuch(f"a number of {length} bytes at byte {self.position}")
        return int.from_bytes(self._take(length), "little", signed=True)

    def _digits(self) -> bytes:
        # Python hands the line to functions of C, for which it ends at a zero byte.
        line = self._line().partition(b"\0")[0]
        if len(line) > MAX_DIGITS:
            raise TooMuch(f"a number of {len(line)} digits at byte {self.position}")
        return line

    def _decimal(self) -> int | bool:
        line = self._digits()
        if line in (b"", b"00", b"01"):  # nothing is 0 for the C library
            return line == b"01"
        text = line.strip().removesuffix(b"L")
        octal = _OCTAL.fullmatch(text)
        return int(octal[1] + octal[2], 8) if octal is not None else int(text, 0)

    def _string(self) -> str:
        line = self._line()
        if len(line) < 2 or line[0] != line[-1] or line[:1] not in (b"'", b'"'):
            raise Damaged(f"a string without quotes at byte {self.position}")
        return codecs.escape_decode(line[1:-1])[0].decode("utf-8", "replace")

    def _bytes(self, length: int) -> Any:
        at = self.position
        if length < BIG:
            self._keep_bytes(length)
            value = Located(self._take(length))
            value.at = at
            return value
        if self._frame_end:
            self._check_frame(length)
        # The bytes are not read; only their presence is checked.
        self.file.seek(at + length - 1)
        if not self.file.read(1) or (self._limit is not None and at + length > self._limit):
            raise Damaged(f"{length} bytes expected at byte {at}, but the file ends before")
        self._base, self._data, self._at = at + length, b"", 0
        return Blob(at, length)


MAX_PLAIN_DEPTH = 8
MAX_PLAIN_VALUES = 100_000
"""Values in all: a list that contains another many times over is small in the file."""
_NOTHING = object()


def plain_value(value: Any) -> Any:
    """The value without stubs: an enum member becomes its value, a class its name."""
    found = _plain(value, 0, [MAX_PLAIN_VALUES])
    return None if found is _NOTHING else found


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if type(value) not in (bool, int, float, str, type(None)) else value
    if depth > MAX_PLAIN_DEPTH or left[0] < 0:
        return _NOTHING
    if isinstance(value, Global):
        return str(value)
    if isinstance(value, dict):
        pairs = ((key, _plain(inside, depth + 1, left)) for key, inside in value.items())
        return {short_text(key): inside for key, inside in pairs if inside is not _NOTHING}
    if isinstance(value, (list, tuple, set, frozenset)):
        found = (_plain(item, depth + 1, left) for item in value)
        return [inside for inside in found if inside is not _NOTHING]
    if isinstance(value, Stub):
        attributes = {**value.attributes, **value.pairs}
        if "_content" in attributes and "_metadata" in attributes:  # OmegaConf
            return _plain(attributes["_content"], depth + 1, left)
        if "_val" in attributes and "_metadata" in attributes:
            return _plain(attributes["_val"], depth + 1, left)
        if attributes:
            return _plain(attributes, depth, left)
        if len(value.args) == 1:
            return _plain(value.args[0], depth + 1, left)
    return _NOTHING
