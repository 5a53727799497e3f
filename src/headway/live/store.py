"""Snapshots on disk.

    snapshots/<n>-step<k>/state.pt     models, optimizers, schedule, scaler, EMA
                          state.json   its length and checksum, written last
                          rank<R>.pt   that rank's own: random numbers, guard, place in the data
                          rank<R>.json

`n` counts the snapshots of the directory, however often the run was begun again; the highest is the
newest, and none is ever written over.

A file is written under another name, synced, and renamed; its seal comes after it. Whatever has no
seal, or not the sealed bytes, counts for nothing, so a run killed at any moment leaves the
snapshots it had. Everything loads with `weights_only=True`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headway.torch_tools.sealed_files import (
    load,
    numbered,
    save,
    seal_of,
    sync_folder,
    write_text,
)

STATE = "state"


class Store:
    """The snapshots of a run directory, as one rank sees them."""

    def __init__(self, folder: Path, *, keep: int, rank: int = 0, ranks: int = 1) -> None:
        self.folder = folder
        self._keep = max(keep, 1)
        self._rank = rank
        self._ranks = ranks

    def next_number(self) -> int:
        """The number of the next snapshot; ranks agree on it before they write."""
        return max((number for number, _ in self._found()), default=0) + 1

    def prepare(self, number: int, step: int, state: Any, own: Any) -> Callable[[], None]:
        """The work of writing a snapshot, for another thread; `state` may not change meanwhile."""
        return lambda: self.write(number, step, state, own)

    def write(self, number: int, step: int, state: Any, own: Any) -> None:
        """Put a snapshot on disk. Raises OSError, or torch's RuntimeError where the disk is full.

        Whatever was there before stays valid until the new one is complete.
        """
        home = self._home(number, step)
        home.mkdir(parents=True, exist_ok=True)
        write_sealed(home, self._own_name, own)
        if self._rank == 0:  # all ranks hold the same
            write_sealed(home, STATE, state)
        sync_folder(self.folder)
        if self._rank == 0:
            self._retire()

    def newest_first(self) -> Iterator[tuple[int, int]]:
        """(number, step) of the snapshots that are whole for this rank. Reads every byte."""
        return (found for found in self._found() if self._whole(self._home(*found)))

    def read(self, number: int, step: int) -> tuple[Any, Any]:
        """(state, what is this rank's own; None where this rank did not exist then)."""
        home = self._home(number, step)
        own = home / f"{self._own_name}.pt"
        return load(home / f"{STATE}.pt"), load(own) if own.exists() else None

    @property
    def _own_name(self) -> str:
        return f"rank{self._rank}"

    def _names(self) -> tuple[str, ...]:
        """The parts that make a snapshot complete."""
        return (STATE, *(f"rank{rank}" for rank in range(self._ranks)))

    def _home(self, number: int, step: int) -> Path:
        return self.folder / f"{number}-step{step}"

    def _found(self) -> list[tuple[int, int]]:
        return [(number, step) for number, step, _ in numbered(self.folder)]

    def _whole(self, home: Path) -> bool:
        # A rank that was not there then has nothing of its own; one that was must have all of it.
        own = not (home / f"{self._own_name}.json").exists() or intact(home, self._own_name)
        return own and intact(home, STATE)

    def _retire(self) -> None:
        complete = 0
        for found in self._found():
            home = self._home(*found)
            if complete >= self._keep:
                # The seals go first: without them the rest counts for nothing.
                for seal in home.glob("*.json"):
                    seal.unlink(missing_ok=True)
                shutil.rmtree(home, ignore_errors=True)
            complete += all((home / f"{name}.json").exists() for name in self._names())


def write_sealed(home: Path, name: str, content: Any, **more: Any) -> None:
    """Write `<name>.pt`, then its seal; `more` goes into the seal."""
    new = home / f"{name}.pt.new"
    seal = save(new, content)
    os.replace(new, home / f"{name}.pt")
    fresh = home / f"{name}.json.new"
    write_text(fresh, json.dumps({**seal, **more}))
    os.replace(fresh, home / f"{name}.json")
    sync_folder(home)


def intact(home: Path, name: str) -> bool:
    """Whether a file holds the bytes that were sealed."""
    try:
        seal = json.loads((home / f"{name}.json").read_text(encoding="utf-8"))
        return seal_of(home / f"{name}.pt", seal["bytes"]) == {
            "bytes": seal["bytes"],
            "sha256": seal["sha256"],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return False
