"""The registered log readers, and which of them reads a given file.

A reader is a module of `logs.formats`, or an entry of such a module's `READERS`, with

    FORMAT: str                             its name: `megatron`
    SAYS: str                               for people: `Megatron-LM console log`
    recognise(sample: Sample) -> float      how sure it is that the file is its own: 0 no, 1 certain
    read(path: Path) -> Log                 the whole of it

`recognise` looks at the first bytes alone and at nothing else. Writing such a module is all there
is to a new format.
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
from headway.logs.log_file import Sample, sample
from headway.logs.log_table import Log


class Reader(Protocol):
    """What a module, or an entry of its `READERS`, must have to be a reader."""

    FORMAT: str
    SAYS: str

    def recognise(self, sample: Sample, /) -> float: ...
    def read(self, path: Path, /) -> Log: ...


@dataclass
class LogReader:
    """One of several readers in a module."""

    FORMAT: str
    SAYS: str
    recognise: Callable[[Sample], float]
    read: Callable[[Path], Log]


@cache
def readers() -> tuple[Reader, ...]:
    """All of them, by name."""
    found: list[Reader] = []
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        found += getattr(module, "READERS", ())
        if hasattr(module, "FORMAT") and hasattr(module, "recognise"):
            found.append(module)
    return tuple(found)


def reader_for(path: Path) -> Reader | None:
    """The reader that is surest of a file; None when none knows it."""
    return _surest(sample(path))


def read(path: Path) -> Log:
    """A log of any format. Raises UnreadableInput, saying what is supported."""
    looked = sample(path)
    if not looked.size:
        raise UnreadableInput(f"{path} is empty")
    reader = _surest(looked)
    if reader is None:
        raise UnreadableInput(f"{path} is not a run headway can read; it reads {supported()}")
    log = reader.read(path)
    if not len(log.table):
        raise UnreadableInput(f"{path} looks like a {reader.SAYS}, and there is no number in it")
    return log


def supported() -> str:
    """The formats, in a sentence."""
    return ", ".join(sorted(reader.SAYS for reader in readers()))


def _surest(looked: Sample) -> Reader | None:
    if not looked.size:
        return None
    scored = [(reader.recognise(looked), reader.FORMAT, reader) for reader in readers()]
    best = max(scored, key=lambda item: item[:2], default=(0.0, "", None))
    return best[2] if best[0] > 0 else None
