"""Runs work in a forked child that cannot affect this process, and fetches batches there again.

The child has a copy of all memory. Of open files it has its own positions; pipes and sockets are
replaced, so nothing that this process waits for is consumed. It cannot write, rename or remove
files, connect to anything or start processes; `torch.save` does nothing there.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from headway.torch_adapters.private_parts import private_part

OPEN_FILES = "/proc/self/fd"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = ("shutil.", "socket.", "subprocess.", "sqlite3.", "ftplib.", "smtplib.")
_CHANGES = "remove rename rmdir mkdir link symlink truncate chmod chown utime setxattr"
_PROCESSES = "system exec fork forkpty posix_spawn spawn kill killpg"
FORBIDDEN_CALLS = frozenset(f"os.{name}" for name in f"{_CHANGES} {_PROCESSES}".split())
"""Audit events that the child answers with an error."""

_MapFetcher: Any = private_part(
    "torch.utils.data._utils.fetch._MapDatasetFetcher",
    None,
    without="the line of the data set that made a bad batch is not known under `headway run`",
)
_IterableFetcher: Any = private_part(
    "torch.utils.data._utils.fetch._IterableDatasetFetcher",
    None,
    without="the same for iterable data sets",
)


def run_isolated(work: Callable[[], bytes], seconds: float) -> bytes:
    """The result of `work()` in a child; empty if it raises, takes longer or cannot be isolated."""
    if sys.platform != "linux" or not os.path.isdir(OPEN_FILES):
        return b""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads: DataLoader workers are forked all the same
        child = os.fork()
    if child == 0:
        _be_the_child(work, theirs)
    os.close(theirs)
    try:
        return _read(ours, time.monotonic() + seconds)
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _read(source: int, until: float) -> bytes:
    """Everything up to the end; empty if that does not come in time."""
    parts: list[bytes] = []
    while select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(source, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return b""


def _be_the_child(work: Callable[[], bytes], answer: int) -> None:
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _isolate(answer)
        torch.set_num_threads(1)  # the threads of the parent are not here
        torch.save = lambda *_, **__: None  # it may open its file outside of Python
        sys.addaudithook(_forbid)
        result = work()
        while result:
            result = result[os.write(answer, result) :]
    finally:
        os._exit(0)


def _forbid(event: str, given: tuple[Any, ...]) -> None:
    written = event == "open" and isinstance(given[2], int) and given[2] & WRITING
    if written or event in FORBIDDEN_CALLS or event.startswith(FORBIDDEN):
        raise PermissionError(f"not in this process: {event}")


def _isolate(kept: int) -> None:
    """Own positions in files, and no pipe, socket or terminal."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir(OPEN_FILES)):
        if number in (kept, nowhere):
            continue
        with suppress(OSError):
            kind = os.fstat(number).st_mode
            if stat.S_ISREG(kind):
                at = os.lseek(number, 0, os.SEEK_CUR)
                again = os.open(f"{OPEN_FILES}/{number}", os.O_RDONLY)
                os.lseek(again, at, os.SEEK_SET)
                os.dup2(again, number)
                os.close(again)
            elif number <= 2 or not stat.S_ISCHR(kind):
                os.dup2(nowhere, number)


@dataclass(frozen=True, slots=True)
class BatchRecipe:
    """How a loader makes a batch of its data set. It does not hold the loader: persistent workers
    end when the last reference to theirs is gone."""

    dataset: Any
    batched: bool
    size: int | None
    collate: Any
    drop_last: bool
    workers: int

    @classmethod
    def of(cls, loader: Any) -> BatchRecipe | None:
        """None if it is no DataLoader, or is gone."""
        if not isinstance(loader, DataLoader):
            return None
        size = loader.batch_size
        batched = loader.batch_sampler is not None or size is not None
        more = (loader.collate_fn, loader.drop_last, loader.num_workers)
        return cls(loader.dataset, batched, size, *more)

    def can_fetch(self, indices: Any) -> bool:
        """Whether the batch of these indices can be made once more."""
        if isinstance(self.dataset, IterableDataset):
            # Workers share such a data set out among themselves.
            return _IterableFetcher is not None and self.workers == 0
        return _MapFetcher is not None and indices is not None

    def fetch(self, indices: Any) -> Iterator[Any]:
        """The batch of these indices; of an iterable data set, its batches from the first on."""
        kind = _IterableFetcher if isinstance(self.dataset, IterableDataset) else _MapFetcher
        fetcher = kind(self.dataset, self.batched, self.collate, self.drop_last)
        if kind is _MapFetcher:
            yield fetcher.fetch(indices)
            return
        with suppress(StopIteration):
            while True:
                yield fetcher.fetch(range(self.size or 1) if self.batched else None)
