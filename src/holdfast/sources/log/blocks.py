"""The lines of a file in blocks, in bounded memory however long a line is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import UnreadableInput

BLOCK = 1 << 20
"""Bytes read at a time."""
LONGEST_LINE = 1 << 24
"""A longer line is no row of a log: an empty one is given in its place."""

_MARK = b"\xef\xbb\xbf"


def blocks(path: Path, size: int = BLOCK) -> Iterator[list[bytes]]:
    """The lines, without their ends, some thousands at a time."""
    try:
        with open(path, "rb") as file:
            yield from _blocks(file, size)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


def _blocks(file: object, size: int) -> Iterator[list[bytes]]:
    read = file.read  # type: ignore[attr-defined]
    first, pieces, held, skipping = True, [], 0, False
    while block := read(size):
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
        if skipping:  # the rest of a line that was too long: nothing stands for all of it
            end = whole.find(b"\n")
            whole = b"" if end < 0 else whole[end:]
            skipping = False
        else:
            whole = b"".join([*pieces, whole])
        yield whole.split(b"\n")
        pieces, held = ([block[cut + 1 :]], len(block) - cut - 1)
    if held:
        yield [b"".join(pieces)]
