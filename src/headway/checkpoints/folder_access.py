"""Decides which files of a scanned folder are opened: regular files that stay in it.

A link may lead anywhere, and a FIFO or a device blocks whoever reads it. The cache of the Hugging
Face hub consists of links from `snapshots/` to `blobs/` beside it: those stay in the cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

_roots: ContextVar[tuple[Path, ...]] = ContextVar("scanned folders", default=())
_left_out: ContextVar[dict[Path, Path] | None] = ContextVar("links out of them", default=None)
_kept: ContextVar[dict[tuple[int, ...], Any] | None] = ContextVar("a slow reading", default=None)
SLOW = 0.5
"""Processor seconds from which a reading is kept until the next slow one."""

T = TypeVar("T")


@contextmanager
def scanning(roots: Iterable[Path]) -> Iterator[dict[Path, Path]]:
    """Inside, links may lead to anything in these folders. Yields the links that lead out of them,
    with their targets, as they are met."""
    found: dict[Path, Path] = {}
    before = _roots.set(tuple(_allowed_folder(root) for root in roots))
    noted = _left_out.set(found)
    kept = _kept.set({})
    try:
        yield found
    finally:
        _kept.reset(kept)
        _left_out.reset(noted)
        _roots.reset(before)


def read_once(path: Path, read: Callable[[], T], is_small: Callable[[T], bool]) -> T:
    """The result of reading a file. While a folder is scanned, a slow file is not read again: the
    last one, and all whose result takes little memory."""
    kept = _kept.get()
    if kept is None:
        return read()
    stat = os.stat(path)
    key = (hash(read.__code__), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if key in kept:
        result: T = kept[key][0]
        return result
    begun = time.process_time()
    result = read()
    if time.process_time() - begun > SLOW:
        for other, value in list(kept.items()):
            if not value[1]:
                del kept[other]
        kept[key] = (result, is_small(result))
    return result


def limit_seconds(limit: float) -> float:
    """Processor time for the next file: less after each one that was too costly to judge."""
    costly = sum(small for _, small in (_kept.get() or {}).values())
    return float(limit / 4 ** min(costly, 4))


def is_own_file(path: Path) -> bool:
    """Whether it is a regular file, and does not lead out of what is scanned."""
    return path.is_file() and _stays(path)


def is_own_folder(path: Path) -> bool:
    """Whether it is a folder, and does not lead out of what is scanned."""
    return path.is_dir() and _stays(path)


def describe_left_out(links: Mapping[Path, Path]) -> str:
    """One sentence about the links that were not followed; empty if there are none."""
    if not links:
        return ""
    link, target = next(iter(links.items()))
    verbs = "points outside the scanned folders and was"
    if len(links) > 1:
        verbs = f"and {len(links) - 1} more links point outside the scanned folders and were"
    return f"{link} -> {target} {verbs} not followed"


def _stays(path: Path) -> bool:
    real = Path(os.path.realpath(path))
    parent = Path(os.path.realpath(path.parent))
    if real == parent / path.name:
        return True  # not a link
    allowed = _roots.get() or (_allowed_folder(path.parent),)
    if any(real.is_relative_to(folder) for folder in allowed):
        return True
    noted = _left_out.get()
    if noted is not None:
        noted.setdefault(path, real)
    return False


def _allowed_folder(root: Path) -> Path:
    """The folder in which links may end: the root itself, or the hub's cache that it is part of."""
    real = Path(os.path.realpath(root))
    folder = real if os.path.isdir(real) else real.parent
    for inside in (folder, *folder.parents):
        if inside.name == "snapshots" and os.path.isdir(inside.parent / "blobs"):
            return inside.parent
    return folder
