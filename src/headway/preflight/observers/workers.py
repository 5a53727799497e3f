"""Whether the workers of a loader draw the same random numbers as each other."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader

from headway.preflight.observer import Observer
from headway.preflight.worker_seeds import TellingCollate, TellingInit, read_notes

TOPIC = "worker-seeds"
MOST_LOADERS = 4


class Workers(Observer):
    """Puts a note-taker into the workers while they are started."""

    def start(self) -> None:
        self._folders: list[tuple[str, int, dict[str, Any] | None]] = []
        self._met: set[int] = set()
        self._kept: list[Any] = []
        self._undo: list[tuple[Any, str, Any]] = []
        self._alone = False

    def pass_begun(self, loader: Any) -> None:
        self._put_back()
        if not isinstance(loader, DataLoader) or loader.num_workers < 2:
            self._alone = True
            return
        if id(loader) in self._met or len(self._met) >= MOST_LOADERS:
            return
        self._met.add(id(loader))
        self._kept.append(loader)
        folder = tempfile.mkdtemp(prefix="headway-workers-")
        self._folders.append((folder, loader.num_workers, self.scene.place()))
        init, collate = loader.worker_init_fn, loader.collate_fn
        loader.worker_init_fn = TellingInit(init, folder)
        loader.collate_fn = TellingCollate(collate, folder)
        self._undo = [(loader, "worker_init_fn", init), (loader, "collate_fn", collate)]

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._put_back()

    def _put_back(self) -> None:
        undo, self._undo = self._undo, []
        for owner, name, value in undo:
            setattr(owner, name, value)

    def finished(self) -> None:
        self._put_back()
        for folder, workers, place in self._folders:
            with suppress(OSError):
                self._tell(folder, workers, place)
            shutil.rmtree(folder, ignore_errors=True)
        if self._alone and not self._folders:
            self.evidence.unavailable(TOPIC, "no loader has two workers or more")

    def _tell(self, folder: str, workers: int, place: dict[str, Any] | None) -> None:
        notes = read_notes(folder)
        shared = []
        for name, states in notes.items():
            firsts = [first for first, _ in states.values()]
            twins = len(firsts) > len(set(firsts)) and len(firsts) > 1
            used = any(later is not None and later != first for first, later in states.values())
            if twins and used:
                shared.append(name)
        facts = {"workers": workers, "seen": max(map(len, notes.values()), default=0)}
        self.evidence.tell(TOPIC, {**facts, "shared": shared, "place": place, "first_step": 0})
