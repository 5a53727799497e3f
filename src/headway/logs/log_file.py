"""Reads a log file in bounded memory: its first bytes, blocks of lines, and console lines without
colours and prefixes.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
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
    """The first bytes of a file. Raises UnreadableInput if it cannot be opened."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            return Sample(path, file.read(HEAD), size)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


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
        with open(path, "rb") as file:
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
                        yield _plain(line)
                if not block:
                    return
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


def _encoding(start: bytes) -> str:
    for mark, name in _BOMS:
        if start.startswith(mark):
            return name
    return "utf-8"


def _plain(line: str) -> str:
    line = line[:MAX_LINE]
    return _ANSI.sub("", line) if "\x1b" in line else line


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
                for at in (size // 2, max(size - HEAD, HEAD)):
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
                plain = _plain(line)
                found.append((plain, strip_prefix(plain)[0]))
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
        with open(path, "rb") as file:
            start = file.read(4)
            file.seek(0)
            wide = _encoding(start) == "utf-16"
            yield from _blocks(_Utf16(file) if wide else file, size)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


class _Utf16:
    """A UTF-16 file, as PowerShell writes it, read as UTF-8."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")

    def read(self, size: int) -> bytes:
        """The next bytes; empty at the end."""
        while block := self._file.read(size):
            if text := self._decoder.decode(block):
                return text.encode("utf-8", errors="replace")
        return self._decoder.decode(b"", final=True).encode("utf-8", errors="replace")


def _blocks(file: BinaryIO | _Utf16, size: int) -> Iterator[list[bytes]]:
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
