"""A file that is one JSON text, read whole; Python's reading, which knows NaN and Infinity."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput

BAD_JSON = (ValueError, RecursionError)
LARGEST = 1 << 28
"""Bytes; the history of a million steps is about half of it."""


_SPACE = re.compile(r"[ \t\r\n]*")


def whole_json(path: Path, says: str) -> Any:
    """What is in the file. Raises UnreadableInput."""
    text = whole_text(path, says)
    try:
        return json.loads(text)
    except BAD_JSON as error:
        raise UnreadableInput(f"{path} is no whole {says}: {error}") from error


def whole_text(path: Path, says: str) -> str:
    """The file's text, if it is not too large. Raises UnreadableInput."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UnreadableInput(
                f"{path} is a {says} of {size} bytes; up to {LARGEST} bytes are read"
            )
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


class Elements:
    """The elements of an array within a text, one after the other, none kept."""

    def __init__(self, text: str, begin: int) -> None:
        self._text = text
        self.end = begin
        """After the last element: where the array is closed."""

    def __iter__(self) -> Iterator[Any]:
        decode, text, space = json.JSONDecoder().raw_decode, self._text, _SPACE.match
        at, closing = _spaced(text, self.end), False
        try:
            while not (closing := text[at] == "]"):
                element, at = decode(text, at)
                yield element
                after = space(text, at)
                at = after.end() if after else at
                if text[at] != ",":
                    break
                at = _spaced(text, at + 1)
        except IndexError:  # the text is at its end
            pass
        if not closing and text[at : at + 1] != "]":
            raise ValueError(f"the rows break off at character {at}")
        self.end = at


def _spaced(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
