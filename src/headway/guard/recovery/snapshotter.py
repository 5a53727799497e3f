"""Takes snapshots, keeps the good ones within the host's memory, and returns the last good one."""

from __future__ import annotations

import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from headway.core.numbers import say_bytes
from headway.guard.endings.host_memory import portable_memory
from headway.guard.recovery.snapshot_store import (
    SnapshotAbandoned,
    SnapshotStore,
    find_blind_ranks,
    open_store,
)
from headway.guard.recovery.snapshots import Snapshot, Snapshots, state_bytes, take_snapshot
from headway.guard.recovery.training_state import TrainingState
from headway.output.notices import Notices
from headway.rundir.remote_run import RunFolder
from headway.torch_adapters.process_groups.rank_agreement import SingleProcess

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory that can be allocated without swapping or being killed; None where unknown.

    A container is killed at its own limit, however much the host has.
    """
    known = [found for found in (_of_host(), _of_container()) if found is not None]
    return min(known, default=None)


def _of_host() -> int | None:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return portable_memory().get("MemAvailable")


def _of_container() -> int | None:
    try:
        limit = int((CGROUP / "memory.max").read_text())  # "max" where there is none
        return max(limit - int((CGROUP / "memory.current").read_text()), 0)
    except (OSError, ValueError):
        return None


ARRIVED_AFTER = 4
"""Steps after which the host waits for the copy of a snapshot."""
TRUSTED_AFTER = 8
"""Steps after which every rank knows whether any rank's part of a snapshot is bad; also the minimum
distance of snapshots."""
PART_WAIT_S = 5.0
"""Seconds that a step waits for the parts of other ranks, with `disk_share=1`."""
MEMORY_SHARE = 0.5
"""Maximum share of the free host memory that snapshots take."""


class Snapshotter:
    """The snapshots of one training.

    With several ranks this class does not communicate. Every rank takes its snapshots at the same
    steps. A rank whose part is bad reports it with the next vote, so a snapshot that is
    `TRUSTED_AFTER` steps old and was not reported is good on all ranks.
    """

    def __init__(
        self,
        training: TrainingState,
        settings: Snapshots,
        *,
        run_dir: RunFolder | None,
        own: Callable[[], dict[str, Any]],
        notices: Notices,
        agreement: SingleProcess,
    ) -> None:
        """`own` captures this rank's own state: random numbers, guard, position in the data."""
        self._training = training
        self._settings = settings
        self._own = own
        self._notices = notices
        self._single_process = agreement.count == 1
        every = settings.every
        self._every = every if self._single_process or not every else max(every, TRUSTED_AFTER)
        self._ring: deque[Snapshot] = deque()
        self._arriving: Snapshot | None = None
        self.size = 0
        """Bytes of one snapshot, once there is one."""
        self._room: int | None = None
        self._due = 0
        self._store: SnapshotStore | None = None
        self._failed = ""
        """Why this rank cannot write to disk any more."""
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._may_write_at = 0.0
        # At the start, when a wait for the device or the other ranks does no harm.
        present = training.capture()
        self._expected_nonfinite = training.expected_nonfinite(present)
        on_disk = run_dir is not None and settings.on_disk > 0
        if not self._single_process:
            views = agreement.gather((socket.gethostname(), on_disk))
            # Weights and two moments; their own sizes are not known yet.
            self._agree_on_room(3 * state_bytes(present), [host for host, _ in views], agreement)
            absent = [rank for rank, (_, has) in enumerate(views) if not has]
            if absent and len(absent) < agreement.count:
                on_disk = self._without_disk(
                    f"rank {absent[0]} has no run directory that it can write to",
                    "Give every rank the same run_dir",
                )
        if on_disk and not agreement.can_meet:
            on_disk = self._without_disk(
                "the limit on open files leaves too few for connections between the ranks",
                "Raise it with `ulimit -n`",
            )
        if on_disk and run_dir is not None:
            self._open(run_dir, agreement)

    def _open(self, run_dir: RunFolder, agreement: SingleProcess) -> None:
        store = open_store(run_dir, self._training, agreement, self._settings.on_disk)
        blind = find_blind_ranks(store.files, agreement)
        if blind:
            self._without_disk(
                f"rank {blind[0]} does not see the files of rank 0 in {run_dir.path}",
                "Use a run directory that all ranks share",
            )
        else:
            self._store = store

    def _without_disk(self, why: str, remedy: str) -> bool:
        """Say why no rank writes snapshots to disk."""
        text = f"{why}: no snapshots are written to disk. {remedy}"
        self._notices.once("snapshot-disk", text, shared=True)
        return False

    @property
    def on_disk(self) -> bool:
        """Whether snapshots go to disk."""
        return self._store is not None

    def can_roll_back(self, step: int) -> bool:
        """Whether there is a good state to return to. Waits for a copy in progress."""
        self._settle()
        return bool(self._trusted(step))

    def last_good(self, step: int, *, older: bool) -> Snapshot:
        """The last good state; `older`: the one before it, if there is one."""
        trusted = self._trusted(step)
        if older and len(trusted) > 1:
            trusted.pop()
        self._ring = deque(trusted)
        return trusted[-1]

    def peek(self, step: int) -> Snapshot | None:
        """The last good state, to read only; waits for a copy in progress."""
        self._settle()
        trusted = self._trusted(step)
        return trusted[-1] if trusted else None

    def newest_weights(self) -> list[dict[str, Any]] | None:
        """The models in the newest snapshot whose copy is complete; never touches the device."""
        weights: list[dict[str, Any]] | None = (
            self._ring[-1].state["models"] if self._ring else None
        )
        return weights

    def drop_untrusted(self, step: int) -> None:
        """A rank has found non-finite state: drop the snapshots that may contain it."""
        self._settle()
        self._ring = deque(self._trusted(step))

    def spoiled_buffers(self) -> list[str]:
        """Buffers that are non-finite now and were finite when the guard was created."""
        found = self._training.expected_nonfinite(self._training.capture())
        spoiled = found - self._expected_nonfinite
        return sorted(str(path[-1]) for path in spoiled if path[0] == "models")

    def first(self, step: int) -> bool:
        """Take the state before the first step, as the earliest one to return to."""
        if not self._every or self._due:
            return True
        self._due = step + self._every
        self._take(step, to_disk=False)
        return self._settle_if_here()

    def at_boundary(self, step: int) -> bool:
        """Take a snapshot if one is due. False when a snapshot turned out to be bad."""
        good = True
        if self._arriving is not None and step >= self._arriving.step + ARRIVED_AFTER:
            good = self._settle()
        if not self._every or step < self._due:
            return good
        self._due = step + self._every
        good = self._settle() and good
        self._take(step, to_disk=self._single_process and self.disk_is_due())
        return self._settle_if_here() and good

    def next_due(self) -> int:
        """Up to this step `at_boundary` has nothing to do."""
        due = self._due if self._every else sys.maxsize
        arriving = self._arriving
        return due if arriving is None else min(due, arriving.step + ARRIVED_AFTER)

    def save(self, step: int) -> bool:
        """Take a snapshot and write it to disk. False when it is bad."""
        if self._store is None:
            return True
        good = self._settle()
        self._take(step, to_disk=True)
        return self._settle() and good

    def disk_is_due(self) -> bool:
        """Whether another snapshot on disk is due."""
        if self._store is None:
            return False
        if self._settings.disk_share >= 1.0 and self._single_process:
            self.wait()
            return True
        if self._settings.disk_share >= 1.0 and self._writing is not None:
            # Wait only briefly: another rank may never write its part.
            wait([self._writing], timeout=PART_WAIT_S)
        busy = self._writing is not None and not self._writing.done()
        return not busy and time.monotonic() >= self._may_write_at

    def wait(self) -> None:
        """Wait until the snapshot in progress is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self, *, well: bool = True) -> None:
        """Finish writing, and drop the snapshots in memory; `well`: no error ended the run."""
        if self._store is not None and (not well or self._store.files.apart):
            self._store.shorten_wait()
        self.wait()
        self._ring.clear()
        self._arriving = None
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    # Taking.

    def _take(self, step: int, *, to_disk: bool) -> None:
        state = self._training.capture()
        size = state_bytes(state)
        if self._single_process and (self._room is None or size > 1.1 * self.size):
            self._room, text = self._find_room(size)  # the first one has no moments yet
            if text:
                self._notices.once("snapshot-memory", text)
        self.size = size
        if not self._room:
            return
        reuse = self._ring.popleft() if self._may_overwrite(step, self._room) else None
        try:
            snapshot = take_snapshot(step, state, reuse, self._expected_nonfinite)
        except torch.OutOfMemoryError:
            if not self._single_process:  # the ranks count on having the same snapshots
                raise
            self._without_device_memory(step, size, reuse)
            return
        self._arriving = snapshot
        if to_disk:
            snapshot.rank = self._own()
            self._write(snapshot)

    def _without_device_memory(self, step: int, size: int, reuse: Snapshot | None) -> None:
        """The run needs the memory more than a snapshot does: the next one may fit."""
        if reuse is not None:
            self._ring.appendleft(reuse)
        self._notices.once(
            "snapshot-device-memory",
            f"no snapshot was taken at step {step}: it needs {say_bytes(size)} of device memory "
            "for a moment, and less is free. Roll-backs use an older snapshot, if there is one",
        )

    def _may_overwrite(self, step: int, room: int) -> bool:
        # Never the only good one: a new one counts only when its copy has arrived and is verified.
        full = len(self._ring) >= max(room, 2) and not self._ring[0].busy
        return full and self._will_keep(step)

    def _will_keep(self, step: int) -> bool:
        """Whether a snapshot of this step stays in memory; the others are only written to disk.

        With other ranks the older half of the ring must be trusted.
        """
        return self._single_process or not self._ring or step >= self._ring[-1].step + TRUSTED_AFTER

    def _trusted(self, step: int) -> list[Snapshot]:
        if self._single_process:
            return list(self._ring)
        return [snapshot for snapshot in self._ring if snapshot.step + TRUSTED_AFTER <= step]

    def _settle_if_here(self) -> bool:
        on_its_way = self._arriving is not None and self._arriving.event is not None
        return True if on_its_way else self._settle()

    def _settle(self) -> bool:
        """Add the snapshot whose copy was in progress. False when it is bad."""
        snapshot, self._arriving = self._arriving, None
        if snapshot is None:
            return True
        if not snapshot.good:
            return False
        room = max(self._room or 1, 1 if self._single_process else 2)
        if self._will_keep(snapshot.step):
            self._ring.append(snapshot)
        while len(self._ring) > room:
            self._ring.popleft()
        return True

    def _agree_on_room(self, size: int, hosts: list[str], agreement: SingleProcess) -> None:
        """As many snapshots as fit on the fullest host; its ranks share what is free."""
        host = hosts[agreement.rank]
        found = agreement.gather((*self._find_room(size, hosts.count(host)), host))
        self._room, text, host = min(found, key=lambda item: item[0])
        if text:
            self._notices.once("snapshot-memory", f"on {host}, {text}", shared=True)

    def _find_room(self, size: int, sharing: int = 1) -> tuple[int, str]:
        """How many snapshots of this size fit into memory, and why not all; `sharing`: ranks on
        this host."""
        free = available_bytes()
        free = None if free is None else free // sharing
        wanted = self._settings.in_memory
        if free is None or not size:
            return wanted, ""
        fits = min(int(free * MEMORY_SHARE / size), wanted)
        if fits == wanted:
            return wanted, ""
        owner = "each rank" if sharing > 1 else "this process"
        kept = f"keeping {fits} instead of {wanted}" if fits else "no snapshots are taken"
        return fits, (
            f"a snapshot takes {say_bytes(size)} of host memory and {say_bytes(free)} are free "
            f"for {owner}: {kept}. Snapshots(every=0) switches them off"
        )

    # Writing.

    def _write(self, snapshot: Snapshot) -> None:
        self.wait()
        store = self._store
        if store is None:
            return
        # Every rank comes here at the same step, and all stop writing when one of them cannot.
        job = store.prepare(snapshot, self._failed)
        if job is None:
            self._store = None
            self._notices.once(
                "snapshot-disk",
                f"another rank cannot write snapshots to {store.files}; training continues "
                "without new ones, earlier ones stay valid",
            )
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="headway-snapshots")
        snapshot.busy = True
        self._writing = self._writer.submit(self._write_down, store, snapshot, job)

    def _write_down(
        self, store: SnapshotStore, snapshot: Snapshot, job: Callable[[], None]
    ) -> None:
        began = time.monotonic()
        try:
            job()
        except SnapshotAbandoned as error:
            self._notices.once("snapshot-abandoned", str(error))
        except (OSError, RuntimeError) as error:  # torch wraps a full disk in the latter
            self._failed = getattr(error, "strerror", None) or str(error).splitlines()[0]
            if self._single_process:
                self._store = None
            self._notices.once(
                "snapshot-disk",
                f"cannot write snapshots to {store.files}: {self._failed}; training continues "
                "without new ones, earlier ones stay valid",
            )
        finally:
            snapshot.busy = False
            took = time.monotonic() - began
            self._may_write_at = time.monotonic() + took * (1.0 / self._settings.disk_share - 1.0)
