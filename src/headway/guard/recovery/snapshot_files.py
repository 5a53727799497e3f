"""The files of snapshots on disk, and the manifest that makes them a snapshot.

    snapshots/<n>-step<k>/manifest.json   what the snapshot consists of; written last
                          …               its parts, each with length and checksum in the manifest

`n` counts the snapshots of the directory, across restarts of the run; the highest is the newest,
and none is overwritten. A folder without a manifest, or one of whose parts is missing or differs
from its checksum, is no snapshot. So a run that is killed at any moment keeps its earlier ones.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from headway.rundir.remote_run import MANIFEST, StoredRun
from headway.torch_adapters.nested_state import (
    compute_seal,
    load_file,
    numbered_folders,
    save_file,
    sync_folder,
    write_synced_text,
)

MARK_WAIT_S = 3.0
"""Seconds after which a file that another rank wrote counts as invisible."""
MAX_LISTED = 3
"""Maximum number of problems of one snapshot that a message lists."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """One file of a snapshot."""

    name: str
    rank: int
    """The rank that wrote it."""
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of a snapshot's parts."""

    id: str
    """Distinguishes it from a snapshot of another run with the same number."""
    step: int
    format: str
    """`file`: one process wrote it with `torch.save`; `dcp`: torch.distributed.checkpoint."""
    world_size: int = 1
    strategy: str = "single"
    """`single`, `replicated`, `sharded`, or `per rank`: ranks hold state that the others do not."""
    mesh: Mapping[str, Any] = field(default_factory=dict)
    """Shape and names of the device mesh of sharded parameters."""
    fixed_size: str = ""
    """Why another number of ranks cannot use it; empty: any number can."""
    parts: tuple[SnapshotPart, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Manifest | None:
        """None where the text is not a manifest."""
        try:
            data = json.loads(text)
            found = cls(**{**data, "parts": tuple(SnapshotPart(**part) for part in data["parts"])})
            return found if found.step >= 0 and found.world_size >= 1 else None
        except (ValueError, KeyError, TypeError):
            return None

    def sealed(self, parts: Iterable[SnapshotPart]) -> Manifest:
        """The same with these parts."""
        return replace(self, parts=tuple(parts))


class SnapshotFolder:
    """The files of all snapshots of a run: writes parts, lists them, reads them.

    Everything that touches the file system is here. A snapshot is named by its folder,
    `<n>-step<k>`.
    """

    def __init__(self, path: Path, stored: StoredRun | None = None) -> None:
        """`stored`: the run in a store of which this is the local copy."""
        self.path = path
        self.stored = stored
        self.apart = False
        """Whether some ranks see the files of rank 0 only in the store."""
        self.far = False
        """Whether this rank is one of them."""

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        """The folders of snapshots, complete or not, the newest first."""
        return [home.name for _, _, home in numbered_folders(self.path)]

    def next_number(self) -> int:
        """The number of the next snapshot."""
        found = [number for number, _, _ in numbered_folders(self.path)]
        if self.stored is not None:  # this host may not have any of them yet
            heads = (name.split("-")[0] for name in self.stored.names(self.path.name))
            found += [int(head) for head in heads if head.isdigit()]
        return max(found, default=0) + 1

    def place(self, home: str) -> Path:
        """The folder of a snapshot."""
        return self.path / home

    def create(self, home: str) -> None:
        self.place(home).mkdir(parents=True, exist_ok=True)

    def write(self, home: str, name: str, content: Any, rank: int = 0) -> SnapshotPart:
        """Write tensors and plain data as one part, complete or not at all."""
        new = self.place(home) / f"{name}.new"
        seal = save_file(new, content)
        os.replace(new, self.place(home) / name)
        return SnapshotPart(name, rank, **seal)

    def write_text(self, home: str, name: str, text: str) -> None:
        """Write a text, complete or not at all, and wait for the disk."""
        new = self.place(home) / f"{name}.new"
        write_synced_text(new, text)
        os.replace(new, self.place(home) / name)
        sync_folder(self.place(home))
        sync_folder(self.path)

    def read(self, home: str, name: str) -> Any:
        """Load tensors and plain data of a part; nothing in the file is executed."""
        return load_file(self.place(home) / name)

    def read_text(self, home: str, name: str) -> str:
        """The text of a file; empty where there is none."""
        try:
            return (self.place(home) / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def read_reports(self, home: str, pattern: str, known: Iterable[str]) -> dict[str, str]:
        """Files of a snapshot that are not known yet, by name, here or from other hosts."""
        names = set(self.listed(home, pattern)) - set(known)
        found = {name: self.read_text(home, name) for name in names}
        if self.apart and self.stored is not None:
            below = f"{self.path.name}/{home}"
            stored = [name for name in self.stored.names(below) if fnmatch(name, pattern)]
            for name in set(stored) - set(known) - set(found):
                found[name] = self.stored.read_text(f"{below}/{name}")
        return found

    def listed(self, home: str, pattern: str) -> list[str]:
        """Names of files of a snapshot, relative to it, in order."""
        place = self.place(home)
        return sorted(str(path.relative_to(place)) for path in place.glob(pattern))

    def seal(self, home: str, name: str, rank: int) -> SnapshotPart:
        """The length and checksum of a file that torch wrote."""
        return SnapshotPart(name, rank, **compute_seal(self.place(home) / name))

    def problem_of(self, home: str, part: SnapshotPart) -> str:
        """The problem of a part; empty if there is none. Reads every byte."""
        try:
            found = compute_seal(self.place(home) / part.name, part.bytes)
        except OSError:
            return f"{part.name} of rank {part.rank} is missing"
        if found["bytes"] != part.bytes:
            return f"{part.name} of rank {part.rank} has {found['bytes']:,} of {part.bytes:,} bytes"
        if found["sha256"] != part.sha256:
            return f"{part.name} of rank {part.rank} does not match its checksum"
        return ""

    def manifest(self, home: str) -> Manifest | None:
        """The manifest of a snapshot; None where its write was not finished."""
        return Manifest.from_json(self.read_text(home, MANIFEST))

    def commit(self, home: str, manifest: Manifest) -> None:
        """Make the written parts a snapshot."""
        self.write_text(home, MANIFEST, manifest.to_json())

    def discard(self, home: str, name: str) -> None:
        """Remove a file."""
        (self.place(home) / name).unlink(missing_ok=True)

    # Whether all ranks see the same directory.

    def write_mark(self) -> str:
        """The name of a new file beside the snapshots; empty where none can be written."""
        name = f".shared-{os.urandom(8).hex()}"
        try:
            (self.path.parent / name).touch()
        except OSError:  # nothing was recorded there yet, or it may only be read
            return ""
        return name

    def sees_mark(self, name: str) -> bool:
        """Whether the file is visible here; without one, whether the directory is."""
        place = self.path.parent / name
        deadline = time.monotonic() + MARK_WAIT_S
        while not place.exists():
            if not name or time.monotonic() > deadline:
                return False
            time.sleep(0.05)  # network file systems show new files late
        return True

    def remove_mark(self, name: str) -> None:
        if name:
            (self.path.parent / name).unlink(missing_ok=True)

    def retire_copies(self, keep: int) -> None:
        """Remove old parts of this host; they stay in the store, whose manifests rank 0 writes."""
        for home in self.names()[keep:] if self.far else ():
            shutil.rmtree(self.place(home), ignore_errors=True)

    def retire(self, keep: int) -> None:
        """Remove what is older than the newest `keep` complete snapshots."""
        complete = 0
        for home in self.names():
            if complete >= keep:
                # The manifest first: without it the rest is ignored.
                self.discard(home, MANIFEST)
                shutil.rmtree(self.place(home), ignore_errors=True)
            elif self.manifest(home) is not None:
                complete += 1
