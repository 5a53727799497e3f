"""The lines of a file in blocks, in bounded memory however long a line is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from headway.errors import UnreadableInput

BLOCK = 1 << 20
"""Bytes read at a time."""
LONGEST_LINE = 1 << 24
"""A longer line is no row of a log: another that is none is given in its place."""
TOO_LONG = b"\0"

_MARK = b"\xef\xbb\xbf"


def blocks(path: Path, size: int = BLOCK) -> Iterator[list[bytes]]:
    """The lines, without their ends, some thousands at a time."""
    try:
        with open(path, "rb") as file:
            yield from _blocks(file, size)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


def _blocks(file: BinaryIO, size: int) -> Iterator[list[bytes]]:
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
                if held > LONGEST_LINE:
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
