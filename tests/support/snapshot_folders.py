"""Reading the snapshots of a run directory, for tests."""

from __future__ import annotations

from pathlib import Path

from headway.guard.recovery.snapshot_files import SnapshotFolder


def complete_snapshots(path: Path) -> list[tuple[int, int]]:
    """(number, step) of the snapshots all of whose parts are intact, the newest first."""
    folder = SnapshotFolder(path)
    found = []
    for home in folder.names():
        manifest = folder.manifest(home)
        if manifest is None or not manifest.parts:
            continue
        if not any(folder.problem_of(home, part) for part in manifest.parts):
            found.append((int(home.partition("-")[0]), manifest.step))
    return found
