"""Takes snapshots, keeps the good ones in memory and on disk, and gives the last good one back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.live import host_memory
from holdfast.live.holdings import Holdings
from holdfast.live.notices import Notices
from holdfast.live.snapshots import Snapshot, Snapshots, size_of, take
from holdfast.live.store import Store
from holdfast.live.together import Alone

MEMORY_SHARE = 0.5
"""Snapshots take at most so much of the host memory that is free."""
FOLDER = "snapshots"


class Keeper:
    """The snapshots of one training."""

    def __init__(
        self,
        holdings: Holdings,
        settings: Snapshots,
        *,
        run_dir: Path | None,
        own: Callable[[], dict[str, Any]],
        notices: Notices,
        together: Alone,
    ) -> None:
        """`own` describes what is this rank's own: random numbers, guard, place in the data."""
        self._holdings = holdings
        self._settings = settings
        self._own = own
        self._notices = notices
        self._together = together
        self._ring: deque[Snapshot] = deque()
        self._arriving: Snapshot | None = None
        self.size = 0
        """Bytes of one snapshot, once there is one."""
        self._room: int | None = None
        # Now, while nobody minds a wait for the device.
        self._meant = holdings.meant_nonfinite(holdings.capture())
        self._due = 0
        self._store = self._open(run_dir) if run_dir is not None and settings.on_disk else None
        self._number: int | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._may_write_at = 0.0

    def can_roll_back(self) -> bool:
        """Whether there is a good state to go back to. Waits for a copy that is on its way."""
        self._settle()
        return bool(self._ring)

    @property
    def on_disk(self) -> bool:
        """Whether snapshots go to disk."""
        return self._store is not None

    def first(self, step: int) -> None:
        """The state before the first step: whatever goes wrong can be undone to here at least."""
        if self._settings.every and self._room is None:
            self._due = step + self._settings.every
            self._take(step, to_disk=False)

    def at_boundary(self, step: int) -> bool:
        """Between two steps. False when the state turned out to be no good."""
        if not self._settings.every or step < self._due:
            return True
        self._due = step + self._settings.every
        good = self._settle()
        self._take(step, to_disk=self._disk_is_due())
        return self._settle() and good if self._here_already() else good

    def save_now(self, step: int) -> bool:
        """Snapshot to disk, complete when this returns. False: not written, or no good."""
        if self._store is None:
            return False
        self._settle()
        self._take(step, to_disk=True)
        good = self._settle()
        self.wait()
        return good and self._store is not None

    def last_good(self, *, older: bool) -> Snapshot:
        """The last good state; `older`: it did not help, the one before if there is one."""
        if older and len(self._ring) > 1:
            self._ring.pop()
        return self._ring[-1]

    def wait(self) -> None:
        """Until what is being written is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """No more snapshots; what is being written gets there."""
        self.wait()
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    # Taking.

    def _take(self, step: int, *, to_disk: bool) -> None:
        state = self._holdings.capture()
        size = size_of(state)
        if self._room is None or size > 1.1 * self.size:  # the first has no moments in it yet
            self._room = self._find_room(size)
        self.size = size
        if self._room == 0:
            return
        reuse = self._ring.popleft() if self._may_overwrite() else None
        snapshot = take(step, state, reuse, self._meant)
        self._arriving = snapshot
        if to_disk:
            snapshot.rank = self._own()
            self._write(snapshot)

    def _may_overwrite(self) -> bool:
        # Never the only good one: until its copy has arrived and is verified, a new one is nothing.
        assert self._room is not None
        full = len(self._ring) >= max(self._room, 2)
        return full and not self._ring[0].busy

    def _here_already(self) -> bool:
        return self._arriving is not None and self._arriving.event is None

    def _settle(self) -> bool:
        """Take in the snapshot that was on its way. False when it is no good."""
        snapshot, self._arriving = self._arriving, None
        if snapshot is None:
            return True
        if not self._together.all_true(snapshot.good):
            return False
        self._ring.append(snapshot)
        while len(self._ring) > (self._room or 1):
            self._ring.popleft()
        return True

    def _find_room(self, size: int) -> int:
        """How many snapshots of this size fit into memory."""
        free = host_memory.available_bytes()
        wanted = self._settings.in_memory
        fits = wanted if free is None or not size else int(free * MEMORY_SHARE / size)
        fits = min(self._together.gathered(fits))
        if fits < wanted:
            self._notices.once(
                "snapshot-memory",
                f"a snapshot takes {size / 2**30:.1f} GiB of host memory and "
                f"{(free or 0) / 2**30:.1f} GiB are free: "
                + (f"{fits} kept instead of {wanted}" if fits else "none are taken")
                + "; Snapshots(every=0) switches them off",
            )
        return min(fits, wanted)

    # Writing.

    def _open(self, run_dir: Path) -> Store:
        return open_store(run_dir, self._holdings, self._together, self._settings.on_disk)

    def _disk_is_due(self) -> bool:
        if self._store is None:
            return False
        if self._settings.disk_share >= 1.0:
            self.wait()
            return True
        busy = self._writing is not None and not self._writing.done()
        return self._together.from_first(not busy and time.monotonic() >= self._may_write_at)

    def _write(self, snapshot: Snapshot) -> None:
        assert self._store is not None
        self.wait()
        if self._number is None:
            self._number = self._together.from_first(self._store.next_number())
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="holdfast-snapshots")
        snapshot.busy = True
        number, self._number = self._number, self._number + 1
        job = self._store.prepare(number, snapshot.step, snapshot.state, snapshot.rank)
        self._writing = self._writer.submit(self._write_down, self._store, snapshot, job)

    def _write_down(self, store: Store, snapshot: Snapshot, job: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            if snapshot.good:
                job()
        except (OSError, RuntimeError) as error:  # torch wraps a full disk in the latter
            self._store = None
            said = getattr(error, "strerror", None) or str(error).splitlines()[0]
            self._notices.once(
                "snapshot-disk",
                f"cannot write snapshots to {store.folder}: {said}; training goes on, "
                "those already there stay valid, none are added",
            )
        finally:
            snapshot.busy = False
            took = time.monotonic() - began
            self._may_write_at = time.monotonic() + took * (1.0 / self._settings.disk_share - 1.0)


def open_store(run_dir: Path, holdings: Holdings, together: Alone, keep: int) -> Store:
    """The snapshots of a run directory, in the form this training needs."""
    folder = run_dir / FOLDER
    if not holdings.sharded:
        return Store(folder, keep=keep, rank=together.rank, ranks=together.count)
    from holdfast.live.sharded_store import ShardedStore  # torch.distributed, only where it is used

    return ShardedStore(folder, keep=keep, holdings=holdings, together=together)


def read_newest(run_dir: Path, holdings: Holdings, together: Alone) -> tuple[int, Any, Any] | None:
    """(step, state, this rank's own) of the newest snapshot that is whole on every rank."""
    store = open_store(run_dir, holdings, together, keep=1)
    if together.count == 1:
        found = next(store.newest_first(), None)
    else:
        everywhere = set.intersection(*map(set, together.gathered(list(store.newest_first()))))
        found = max(everywhere, default=None)
    return None if found is None else (found[1], *store.read(*found))
