"""The lines around a bad one, as the page beside an incident has kept them.

No file is opened that a log names: only README.md of the incident's own folder, which is untrusted
like everything in a run directory, and is taken for text.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.core.records import EventRecord

MOST_LINES = 40
MOST_BYTES = 1 << 16
_LINE = re.compile(r"^(?P<mark>[> ])\s*(?P<number>\d+) \|(?P<code>.*)$")

Line = tuple[str, str, bool]
"""Its number, its code, whether it is the bad one."""


def around(
    run: Path,
    incidents: Sequence[EventRecord],
    number: int,
    read: Callable[[Path], bytes | None],
) -> list[Line]:
    """The lines of an incident of a run; none where they were not kept."""
    step = incidents[number].step
    earlier = sum(event.step == step for event in incidents[:number])
    try:
        folders = sorted(
            (item for item in (run / "incidents").iterdir() if item.name.endswith(f"-step{step}")),
            key=lambda item: (len(item.name), item.name),
        )
    except (OSError, ValueError):
        return []
    if earlier >= len(folders):
        return []
    lines: list[Line] = []
    page = read(folders[earlier] / "README.md") or b""
    for line in page.decode("utf-8", "replace").splitlines():
        match = _LINE.match(line)
        if match is not None:
            code = match["code"].removeprefix(" ").replace("\t", "    ")
            lines.append((match["number"], code.rstrip(), match["mark"] == ">"))
        elif lines:
            break
    return lines[:MOST_LINES]


def beginning(path: Path) -> bytes | None:
    """The beginning of an ordinary file; a pipe that somebody has put there must not stop us."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            return file.read(MOST_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else None
        except OSError:
            return None
