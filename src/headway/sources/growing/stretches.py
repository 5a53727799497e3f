"""Lines from some places of a file that may still grow, without reading the rest of it."""

from __future__ import annotations

import os
from pathlib import Path

from headway.sources.plain_file import Opener, opened

FARTHEST_LINE = 1 << 18
"""How far the next line is looked for, where only a sample is wanted."""


def lines_between(path: Path, start: int, end: int) -> list[bytes]:
    """The lines in a stretch of a file that begins and ends with a line."""
    try:
        with opened(path) as file:
            file.seek(start)
            return file.read(max(end - start, 0)).split(b"\n")[:-1]
    except OSError:
        return []


def last_lines(path: Path, length: int, opener: Opener = opened) -> list[bytes]:
    """The lines at the end of a file; of the first, and of the last, maybe a part."""
    try:
        with opener(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - length, 0))
            return file.read(length).splitlines()
    except OSError:
        return []


def sample_lines(path: Path, places: int, length: int) -> list[bytes]:
    """Lines from so many places at equal distances, in order; of the last at each, maybe a part."""
    try:
        with opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= places * length:
                return file.read(size).split(b"\n")[:-1]
            lines: list[bytes] = []
            before = 0
            for number in range(places):
                at = max(number * (size - length) // max(places - 1, 1), before)
                file.seek(at)
                if at:
                    at += len(file.readline(FARTHEST_LINE))  # to where the next one begins
                data = file.read(length)
                lines += data.split(b"\n")
                before = at + len(data)
            return lines
    except OSError:
        return []
