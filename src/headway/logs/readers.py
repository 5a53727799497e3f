"""The registered log readers, and the choice of a reader for a file.

Each module of `logs.formats` has a tuple `READERS`; every entry is a `Reader`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import headway.logs.formats as package
from headway.errors import UnreadableInput
from headway.logs.log_endings import find_ending
from headway.logs.log_file import Sample, sample
from headway.logs.log_table import Log

SUPPORTED = (
    "headway reads CSV, JSON and console logs, TensorBoard, W&B, MLflow and trackio; "
    "docs/after.md lists all formats"
)


CONSOLE_SUFFIXES = (".log", ".out", ".err", ".txt")


class Reader(Protocol):
    """Reads one log format."""

    @property
    def format(self) -> str:
        """Short name of the format: `megatron`."""

    @property
    def label(self) -> str:
        """Name for people: `Megatron-LM console log`."""

    def recognise(self, sample: Sample, /) -> float:
        """Certainty that a file has this format, from its first bytes: 0 no, 1 certain."""

    def read(self, path: Path, /) -> Log:
        """Reads the whole file. Raises UnreadableInput."""


@dataclass(frozen=True)
class LogReader:
    """A reader made of two functions."""

    format: str
    label: str
    recognise: Callable[[Sample], float]
    read: Callable[[Path], Log]
    read_each: Callable[[Path], list[Log]] | None = None
    """Reads each run of a file that contains several, the newest last."""


@cache
def readers() -> tuple[Reader, ...]:
    """The readers of all modules in `logs.formats`."""
    modules = (
        importlib.import_module(f"{package.__name__}.{info.name}")
        for info in pkgutil.iter_modules(package.__path__)
    )
    return tuple(reader for module in modules for reader in module.READERS)


def reader_for(path: Path) -> Reader | None:
    """The reader with the highest certainty; None if no reader recognises the file."""
    return _most_certain(sample(path))


def read(path: Path) -> Log:
    """Reads a log of any format; of a store of several runs, the newest. Raises UnreadableInput."""
    return read_runs(path, newest=True)[-1]


def read_runs(path: Path, *, newest: bool = False) -> list[Log]:
    """Reads each run in a file, the newest last: most formats have one. Raises UnreadableInput."""
    first = sample(path)
    if not first.size:
        raise UnreadableInput(f"{path} is empty")
    reader = _most_certain(first)
    if reader is None:
        if (ending := read_ending(first)) is not None:
            return [ending]
        raise UnreadableInput(f"the format of {path} is not supported. {SUPPORTED}")
    read_each = None if newest else getattr(reader, "read_each", None)
    logs = [reader.read(path)] if read_each is None else read_each(path)
    logs = [log for log in logs if len(log.table)]
    if not logs:
        raise UnreadableInput(f"{path} looks like a {reader.label}, but contains no numbers")
    return logs


def read_ending(first: Sample) -> Log | None:
    """A console log without numbers whose end shows that the run failed."""
    name = first.path.name.lower().removesuffix(".gz")
    if not first.is_text or not name.endswith(CONSOLE_SUFFIXES):
        return None
    free_text = next(reader for reader in readers() if reader.format == "text")
    log = free_text.read(first.path)
    if find_ending(log.events) is None:
        return None
    log.notes.append("the log has no numbers that headway can read; only its end was judged")
    return log


def _most_certain(first: Sample) -> Reader | None:
    if not first.size:
        return None
    scored = [(reader.recognise(first), reader.format, reader) for reader in readers()]
    best = max(scored, key=lambda item: item[:2], default=(0.0, "", None))
    return best[2] if best[0] > 0 else None
