"""The checkpoints of a run, in the order of their steps."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from headway.checkpoints import deepspeed, steps
from headway.checkpoints.mistaken import should_be_one
from headway.checkpoints.opening import open_checkpoint, recognise
from headway.errors import UnreadableInput

MAX_DEPTH = 8
MAX_ENTRIES = 200_000
OPENED = 500
"""More than this many are ordered by their names alone."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "wandb", "mlruns"})
_NO_FILES = frozenset(
    [
        ".py",
        ".txt",
        ".log",
        ".json",
        ".jsonl",
        ".csv",
        ".yaml",
        ".yml",
        ".md",
        ".html",
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".svg",
        ".toml",
        ".cfg",
        ".ini",
        ".sh",
        ".ipynb",
        ".wandb",
        ".db",
        ".sqlite",
        ".tsv",
        ".c",
        ".cpp",
        ".cu",
        ".h",
        ".so",
        ".parquet",
        ".arrow",
        ".gz",
        ".zst",
        ".xz",
        ".bz2",
        ".tar",
        ".mp4",
        ".pdf",
        # What a save is called until it is complete.
        ".tmp",
        ".temp",
        ".part",
        ".partial",
        ".incomplete",
    ]
)
_BESIDE = frozenset({"scheduler.pt", "training_args.bin", "rng_state.pth", "scaler.pt"})
_SHARD_INDEX = ".index.json"
_INCIDENT = "incident.json"
"""In the folder of a captured step: a batch and what it met, no state to go on from."""
_OF_A_RANK = re.compile(r"rank\d+")
"""In a snapshot of a run of ours: random numbers and the place in the data, beside the state."""


def find_checkpoints(folder: Path) -> list[Path]:
    """Those in a folder and below; a folder that is one checkpoint is not entered for its parts."""
    folder = Path(folder)
    if not folder.is_dir():
        return [folder] if recognise(folder) is not None else []
    found: list[Path] = []
    _search(folder, found, set(), 0, [0])
    return _ordered(found)


def _search(folder: Path, found: list[Path], seen: set[str], depth: int, count: list[int]) -> None:
    real = os.path.realpath(folder)
    if real in seen or depth > MAX_DEPTH:
        return
    seen.add(real)
    try:
        # Links last: `last.ckpt` is a second name of a file that has its own.
        inside = sorted(os.scandir(folder), key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError:
        return
    count[0] += len(inside)
    if count[0] > MAX_ENTRIES:
        return
    if any(entry.name == _INCIDENT for entry in inside):
        return
    kind = recognise(folder)
    if kind == "deepspeed" and not deepspeed._shards(folder):
        found += deepspeed.tags_of(folder)
        named = deepspeed.folder_of(folder)
        if named is None or not named.is_dir():
            found.append(folder)  # what is missing is said of the folder that names it
        return
    if kind is not None:
        found.append(folder)
    for entry in inside:
        try:
            is_folder = entry.is_dir()
        except OSError:
            continue
        if is_folder:
            # A trainer keeps its last model in the folder of its checkpoints.
            own = kind is not None and not entry.name.startswith(("checkpoint", "epoch", "step"))
            if not own and entry.name not in _SKIPPED and not entry.name.startswith("."):
                _search(Path(entry.path), found, seen, depth + 1, count)
        elif kind is None:
            _file(Path(entry.path), found, seen)


def _file(path: Path, found: list[Path], seen: set[str]) -> None:
    if path.suffix.lower() in _NO_FILES and not path.name.endswith(_SHARD_INDEX):
        return
    if path.name in _BESIDE:
        return
    if _OF_A_RANK.fullmatch(path.stem) and path.with_suffix(".json").exists():
        return
    real = os.path.realpath(path)
    if real in seen:
        return
    seen.add(real)
    with contextlib.suppress(OSError):
        if recognise(path) is not None or should_be_one(path):
            found.append(path)


def _ordered(found: list[Path]) -> list[Path]:
    look = len(found) <= OPENED

    def key(path: Path) -> tuple[int, int, float, str]:
        step = steps.of_name(path)
        if look:
            with contextlib.suppress(UnreadableInput):
                step = open_checkpoint(path).step
        try:
            changed = path.stat().st_mtime
        except OSError:
            changed = 0.0
        # Without a step: after those that have one, a `last` or `final` has none.
        return (step is None, step or 0, changed if step is None else 0.0, str(path))

    return sorted(found, key=key)
