"""Reads a log file in bounded memory: its first bytes, blocks of lines, and console lines without
colours and prefixes.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import BinaryIO

from headway.errors import UnreadableInput

# The first bytes, from which the format is recognised.

HEAD = 1 << 16
"""Bytes in a sample."""


@dataclass(frozen=True)
class Sample:
    """The first bytes of a file."""

    path: Path
    head: bytes
    size: int

    @cached_property
    def text(self) -> str:
        """The bytes as text; invalid UTF-8 is replaced."""
        return self.head.decode(_encoding(self.head), errors="replace")

    @cached_property
    def is_text(self) -> bool:
        """Whether the bytes are readable text."""
        return "\0" not in self.text and self.text.count("\ufffd") * 50 <= len(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """The first lines, without an incomplete last one. Each redraw of a progress bar is a
        line."""
        lines = self.text.replace("\r", "\n").split("\n")
        return [line for line in (lines if self.size <= HEAD else lines[:-1]) if line.strip()]


def sample(path: Path) -> Sample:
    """The first bytes of a file, unpacked. Raises UnreadableInput if it cannot be opened."""
    try:
        size = path.stat().st_size
        with open_log(path) as file:
            head = file.read(HEAD)
            if isinstance(file, _Unpacked):
                size = len(head) + len(file.read(1))
            return Sample(path, head, size)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


# A file that `gzip` or log rotation has packed is unpacked as it is read.

_PACKED = b"\x1f\x8b"


class _Unpacked:
    """A packed file, read unpacked. What is left of a damaged one is read up to the damage."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=file)

    def read(self, size: int) -> bytes:
        """The next bytes; empty at the end."""
        parts, held = [], 0
        with suppress(EOFError, zlib.error, gzip.BadGzipFile):
            while held < size and (part := self._file.read1(size - held)):
                parts.append(part)
                held += len(part)
        return b"".join(parts)

    def seek(self, place: int) -> None:
        """Goes to a place; only the beginning is cheap."""
        self._file.seek(place)


@contextmanager
def open_log(path: Path) -> Iterator[BinaryIO | _Unpacked]:
    """Opens a file of text, packed or not."""
    with open(path, "rb") as file:
        packed = file.read(2) == _PACKED
        file.seek(0)
        _being_read.append((file, path.stat().st_size))
        try:
            yield _Unpacked(file) if packed else file
        finally:
            _being_read.pop()


_being_read: list[tuple[BinaryIO, int]] = []
"""The open logs and their sizes, the innermost last."""


def share_read() -> float | None:
    """How much of the log that is being read was read; None between two. For another thread."""
    with suppress(IndexError, ValueError, OSError):
        file, size = _being_read[-1]
        return min(file.tell() / size, 1.0) if size else None
    return None


# The lines of a console log, without colours, time stamps, logger names and labels of ranks and
# workers. Each redraw of a progress bar (`\r`) is a line. One pass, bounded memory.

MAX_LINE = 1 << 14
"""Characters of a line; the rest is cut off."""
_CHUNK = 1 << 18
_LOOKED_AT = 500
"""Lines at either end of a block that are enough to recognise a format."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]{0,32}[ -/]?[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[()].|.)"
)

_BARE_LOSS = re.compile(
    r"(?:^|(?<=\d)[:,]?)\s{0,8}tensor\(([-+]?[\w.+-]{1,30})"
    r"(?:, [^()\n]{0,80})?, grad_fn=<\w{1,60}>\)"
)
"""`print(step, loss)`: a tensor with a graph and without a name."""

_CLOCK = r"\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?(?:\ ?[AP]M)?"
_LEVEL = r"(?:INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL|SUCCESS|TRACE|NOTICE)"
_PREFIX = re.compile(
    rf"""(?:\s*(?:
      \[?(?:\w*[Rr]ank[ _=:]?|default|RANK[ _=:]?)(?P<rank>\d{{1,5}})(?:\]:?|:|(?!\w))
    | \[GPU:?\s?(?P<gpu>\d{{1,4}})\]
    | \([\w.]{{1,60}}[: ]\d{{1,5}}\)(?=:?\s{_LEVEL}\b)
    | \(\w{{1,60}}\s+pid=(?P<pid>\d+)[^)]{{0,120}}\)
    | \[?\d{{4}}[-/]\d\d?[-/]\d\d?[T _,-]{{0,3}}{_CLOCK}(?:Z|\ ?[+-]\d\d:?\d\d)?
      (?:\ [\w.-]{{1,60}}(?=\]))?\]?
    | \[[\w.-]{{1,60}}\](?=\ \d{{4}}-\d\d-)
    | \[?\d\d?/\d\d?(?:/\d{{2,4}})?,?[ _-]{_CLOCK}(?:\ [\w.]{{1,80}})?\]?
    | \[?{_CLOCK}\]?(?=[\s\[|:-])
    | [IWEF]\d{{4}}\ {_CLOCK}\s+\d+\s+[\w./<>-]{{1,120}}:\d+\]
    | \[{_LEVEL}\b[^\]\n]{{0,120}}\]
    | \[[\w./-]{{1,120}}\.py:\d+(?::\w+)?\]
    | {_LEVEL}:[\w.]{{1,80}}:
    | {_LEVEL}\b(?=[\s:|\]-])
    | \[NeMo\ [A-Z]\ [^\]\n]{{1,120}}\]
    | \[titan\]
    | [\w.<>]{{1,80}}:[\w.<>]{{1,80}}:\d+(?=\s-\s)
    | \w{{1,40}}(?:\.\w{{1,40}}){{1,6}}:\d{{1,5}}(?=\s-\s)
    | [\w.]{{1,80}}(?=\s-\s{_LEVEL}\b)
    | [\w.-]{{1,80}}:\d{{1,5}}\t[\w.]{{1,80}}:\d{{1,5}}(?=\t)
    | (?:train|train_inner|__main__|root)(?=\s[|-]\s)
    )(?:\s*(?:>>|[|:>-])(?=\s|$))?)+\s*""",
    re.VERBOSE,
)
_STARTS = frozenset("[(0123456789IWEFDCSTN \t_rd") | frozenset("abcdefghijklmnopqrstuvwxyz")


def console_lines(path: Path) -> Iterator[str]:
    """Every line of a file that is not blank, without colours. Raises UnreadableInput."""
    try:
        with open_log(path) as file:
            start = file.read(4)
            file.seek(0)
            decoder = codecs.getincrementaldecoder(_encoding(start))(errors="replace")
            rest, cut = "", False
            while True:
                block = file.read(_CHUNK)
                text = decoder.decode(block, final=not block)
                if "\r" in text:
                    text = text.replace("\r", "\n")
                parts = text.split("\n")
                if cut:
                    parts[0] = ""
                parts[0] = rest + parts[0]
                rest = parts.pop() if block else ""
                cut = len(rest) > MAX_LINE or (cut and not parts)
                rest = rest[:MAX_LINE]
                for line in parts:
                    if line and not line.isspace():
                        yield from _plain(line)
                if not block:
                    return
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


def _encoding(start: bytes) -> str:
    for mark, name in _BOMS:
        if start.startswith(mark):
            return name
    return "utf-8"


def _plain(line: str) -> list[str]:
    """The line without colours; the lines of the text inside, if it is a logger's JSON."""
    line = line[:MAX_LINE]
    if line.startswith("{") and (texts := texts_in(line)):
        return [_without_colours(text) for text in texts]
    return [_without_colours(line)]


def _without_colours(line: str) -> str:
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    return _BARE_LOSS.sub(r" loss: \1", line) if "grad_fn=" in line else line


_WRAPPED = re.compile(
    r"""[{,]\s{0,4}"(?:message|msg|event|log|textPayload|error|exc_info|exception|stack)"\s{0,4}:"""
    r"""\s{0,4}("(?:[^"\\]|\\.){1,12000}")"""
)
"""The text in a logger's or a container's JSON: `{"level": "info", "message": "loss 2.3"}`"""


def texts_in(line: str) -> list[str]:
    """The lines of text in one line of a logger that writes JSON."""
    texts: list[str] = []
    for found in _WRAPPED.finditer(line):
        with suppress(ValueError):
            texts += json.loads(found[1]).replace("\r", "\n").split("\n")
    return [text for text in texts if text and not text.isspace()]


def strip_prefix(line: str) -> tuple[str, str]:
    """A line without the prefixes of launcher and logger, and the rank in them (or "")."""
    if line[:1] not in _STARTS:
        return line, ""
    found = _PREFIX.match(line)
    if found is None:
        return line, ""
    return line[found.end() :], found["rank"] or found["gpu"] or ""


def preview_lines(sample: Sample) -> list[tuple[str, str]]:
    """(plain line, line without prefixes) of a few hundred lines: from the start of the file and,
    in case of a long dump of settings, from the middle and the end."""
    return list(_preview_lines(str(sample.path), sample.size, sample.head))


@lru_cache(maxsize=4)
def _preview_lines(path: str, size: int, head: bytes) -> tuple[tuple[str, str], ...]:
    name = _encoding(head)
    blocks = [head]
    if size > HEAD:
        try:
            with open(path, "rb") as file:
                packed = file.read(2) == _PACKED
                for at in () if packed else (size // 2, max(size - HEAD, HEAD)):
                    file.seek(at - at % 4)
                    blocks.append(file.read(HEAD // 2))
        except OSError:
            pass
    found: list[tuple[str, str]] = []
    for number, block in enumerate(blocks):
        coding = name if number == 0 or name != "utf-16" else _wide(head)
        text = block.decode(coding, errors="replace").replace("\r", "\n")
        lines = text.split("\n")
        whole = lines[1 if number else 0 : len(lines) if size <= HEAD else -1]
        if len(whole) > 2 * _LOOKED_AT:
            whole = whole[:_LOOKED_AT] + whole[-_LOOKED_AT:]
        for line in whole:
            if line and not line.isspace():
                found += [(plain, strip_prefix(plain)[0]) for plain in _plain(line)]
    return tuple(found)


def _wide(head: bytes) -> str:
    return "utf-16-le" if head.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"


def is_text(sample: Sample) -> bool:
    """Whether it is text, in UTF-8 or UTF-16."""
    wide = _encoding(sample.head) == "utf-16"
    return wide or sample.is_text


# Blocks of lines, in bounded memory however long a line is.

BLOCK = 1 << 20
"""Bytes read at a time."""
MAX_BLOCK_LINE = 1 << 24
"""A longer line is replaced by TOO_LONG: it is not a row of a log."""
TOO_LONG = b"\0"

_MARK = b"\xef\xbb\xbf"


def line_blocks(path: Path, size: int = BLOCK) -> Iterator[list[bytes]]:
    """The lines without line ends, a few thousand at a time."""
    try:
        with open_log(path) as file:
            start = file.read(4)
            file.seek(0)
            wide = _encoding(start) == "utf-16"
            yield from _blocks(_Utf16(file) if wide else file, size)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


class _Utf16:
    """A UTF-16 file, as PowerShell writes it, read as UTF-8."""

    def __init__(self, file: BinaryIO | _Unpacked) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")

    def read(self, size: int) -> bytes:
        """The next bytes; empty at the end."""
        while block := self._file.read(size):
            if text := self._decoder.decode(block):
                return text.encode("utf-8", errors="replace")
        return self._decoder.decode(b"", final=True).encode("utf-8", errors="replace")


def _blocks(file: BinaryIO | _Unpacked | _Utf16, size: int) -> Iterator[list[bytes]]:
    first, held, skipping = True, 0, False
    pieces: list[bytes] = []
    while block := file.read(size):
        if first:
            block, first = block.removeprefix(_MARK), False
        cut = block.rfind(b"\n")
        if cut < 0:
            if not skipping:
                pieces.append(block)
                held += len(block)
                if held > MAX_BLOCK_LINE:
                    pieces, held, skipping = [], 0, True
            continue
        whole = block[:cut]
        if skipping:  # the rest of a line that was too long
            whole = TOO_LONG + whole[whole.find(b"\n") :] if b"\n" in whole else TOO_LONG
            skipping = False
        else:
            whole = b"".join([*pieces, whole])
        yield whole.split(b"\n")
        pieces, held = ([block[cut + 1 :]], len(block) - cut - 1)
    if held or skipping:
        yield [TOO_LONG if skipping else b"".join(pieces)]
