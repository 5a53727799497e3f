"""Recognises and opens checkpoints by their content, and finds those of a run in the order of their
steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

from headway.checkpoints import checkpoint_info, nested_pickles, zip_archive
from headway.checkpoints.checkpoint_info import (
    Checkpoint,
    NotJudged,
    describe_file,
    is_unwritten_checkpoint,
)
from headway.checkpoints.folder_access import is_own_file, is_own_folder
from headway.checkpoints.formats import (
    deepspeed,
    exported_program,
    npz,
    safetensors,
    torch_file,
    torch_tar,
)
from headway.checkpoints.formats.dcp import is_dcp
from headway.checkpoints.formats.dcp import read as read_dcp
from headway.checkpoints.formats.deepspeed import folder_of as deepspeed_folder
from headway.checkpoints.formats.deepspeed import read as read_deepspeed
from headway.checkpoints.formats.hf_folder import is_hf_folder, read_sharded
from headway.checkpoints.formats.hf_folder import read as read_hf
from headway.checkpoints.formats.torch_legacy import MAGIC
from headway.checkpoints.tensor_bytes import Lost
from headway.errors import UnreadableInput

SUPPORTED = (
    "torch.save files (.pt, .pth, .bin, .ckpt), TorchScript, torch.export (.pt2), safetensors, "
    "Hugging Face checkpoint folders, distributed checkpoints (DCP), DeepSpeed folders, .npz, "
    "pickles of arrays (.pkl, uncompressed .joblib)"
)
_SCANNED_PICKLE = 1 << 20


def recognise(path: Path) -> str | None:
    """The format of a file or folder; None if it is not a checkpoint."""
    path = Path(path)
    try:
        if is_own_folder(path):
            return _recognise_folder(path)
        return _recognise_file(path) if is_own_file(path) else None
    except OSError:
        return None


def _recognise_folder(path: Path) -> str | None:
    if is_dcp(path):
        return "dcp"
    if is_hf_folder(path):
        return "hf-folder"
    if deepspeed_folder(path) is not None:
        return "deepspeed"
    index = next(filter(is_own_file, sorted(path.glob("*.safetensors.index.json"))), None)
    return "safetensors-sharded" if index is not None else None


def _recognise_file(path: Path) -> str | None:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(64)
        if head[:4] == zip_archive.MAGIC:
            return _recognise_zip(path, size) or _recognise_archive(path)
        if safetensors.recognised(head, size):
            return "safetensors"
        if head.startswith(MAGIC):
            return _lightning(file.read(_SCANNED_PICKLE), "torch-legacy")
        if nested_pickles.looks_like_pickle(head):
            opened = torch_file.read(path, file)
            return "pickle" if torch_file.worth_reading(opened) else None
        if torch_tar.is_torch_tar(file, size):
            return "torch-tar"
    if head[:1] in b"{ \n" and path.name.endswith(".index.json"):
        names = safetensors.index_of(path)
        if names is not None:
            some = next(iter(names.values()))
            return "safetensors-sharded" if some.endswith(".safetensors") else "torch-sharded"
    return "pickle" if nested_pickles.is_text_pickle(path) else _recognise_archive(path)


def _recognise_archive(path: Path) -> str | None:
    """`archive` if it is no checkpoint, but has pickles that are not harmless."""
    return "archive" if nested_pickles.hidden_pickles(path) else None


def _recognise_zip(path: Path, size: int) -> str | None:
    with open(path, "rb") as file:
        try:
            names = list(zip_archive.read_directory(file, size))
        except zip_archive.BadZip:
            first = zip_archive.local_name(file, 0)
            names = [first[0]] if first is not None else []
        pickled = any(name.endswith("data.pkl") for name in names)
        if pickled and any(name.endswith("constants.pkl") for name in names):
            return "torchscript"
        file.seek(0)
        if pickled:
            return _lightning(file.read(_SCANNED_PICKLE), "torch-zip")
    if exported_program.is_exported(names):
        return "exported-program"
    if any("/data/" in name for name in names):
        return "torch-zip"
    arrays = path.suffix.lower() == ".npz" or all(name.endswith(".npy") for name in names)
    return "npz" if names and arrays else None


def _lightning(start: bytes, otherwise: str) -> str:
    return "lightning" if b"pytorch-lightning_version" in start else otherwise


INVALID = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint: its tensors, facts and problems. Raises UnreadableInput."""
    path = Path(path)
    if not path.exists():
        raise UnreadableInput(f"{path} does not exist")
    try:
        return _open(path)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise UnreadableInput(f"{path} is nested too deeply") from error
    except INVALID as error:
        # A file may contain anything where a list or a number is expected. The readers check it; if
        # one misses something, the user still gets a message.
        if os.environ.get("HEADWAY_STRICT") == "1":
            raise
        raise UnreadableInput(f"{path} is not a valid checkpoint: {error}") from error


def _open(path: Path) -> Checkpoint:
    with_permission(path)
    kind = recognise(path)
    if kind == "dcp":
        return read_dcp(path)
    if kind == "hf-folder":
        return read_hf(path)
    if kind == "deepspeed":
        return read_deepspeed(path)
    if kind in ("safetensors-sharded", "torch-sharded"):
        return read_sharded(path, kind)
    if kind == "safetensors":
        return safetensors.checkpoint(path)
    if kind == "npz":
        return npz.checkpoint(path)
    if kind == "exported-program":
        return exported_program.checkpoint(path)
    if kind == "torch-tar":
        return torch_file.checkpoint(path, torch_tar.read(path))
    if kind == "archive":
        return torch_file.archive(path)
    if kind is None:
        what = "a folder without a checkpoint" if path.is_dir() else _what(path)
        raise UnreadableInput(f"{path} is {what}; supported formats: {SUPPORTED}")
    with open(path, "rb") as file:
        try:
            opened = torch_file.read(path, file)
        except Lost as error:
            raise UnreadableInput(f"{path}: {error}; supported formats: {SUPPORTED}") from error
    return torch_file.checkpoint(path, opened)


def with_permission(path: Path) -> None:
    """Raises an OSError if a file may not be read: it would otherwise count as unknown."""
    if path.is_dir():
        next(path.iterdir(), None)
    else:
        with open(path, "rb"):
            pass


def _what(path: Path) -> str:
    if path.stat().st_size == 0:
        return "empty (0 bytes)"
    return describe_file(path) or "not a known checkpoint format"


# Finding the checkpoints of a run.

MAX_DEPTH = 40
MAX_ENTRIES = 200_000
"""A folder with more, or with deeper folders, is not judged."""
MAX_OPENED = 500
"""More checkpoints than this are ordered by their names alone."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", ".git"})
_OF_A_RUN = ("checkpoint", "epoch", "step")
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
        # Names of incomplete saves.
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
"""In the folder of a captured step, which has no state to resume from."""
_OF_A_RANK = re.compile(r"rank\d+")
"""RNG state and data position in a headway snapshot."""


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder and below; a folder that is a checkpoint is not searched."""
    folder = Path(folder)
    if not folder.is_dir():
        return [folder] if recognise(folder) is not None else []
    search = _FolderSearch(folder)
    search.look_in(folder, 0, beside=False)
    return _ordered(search.found)


class _FolderSearch:
    """One search through a folder and those below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[Path] = []
        self.seen: set[str] = set()
        self.entries = 0

    def look_in(self, folder: Path, depth: int, *, beside: bool) -> None:
        """Adds the checkpoints in a folder. `beside`: only those that are unsafe."""
        real = os.path.realpath(folder)
        if real in self.seen:
            return
        self.seen.add(real)
        try:
            # Links last: `last.ckpt` is a second name of a file.
            inside = sorted(os.scandir(folder), key=lambda entry: (entry.is_symlink(), entry.name))
        except OSError:
            return
        self.entries += len(inside)
        if self.entries > MAX_ENTRIES or depth > MAX_DEPTH:
            what = f"more than {MAX_ENTRIES} files and folders"
            if depth > MAX_DEPTH:
                what = f"folders more than {MAX_DEPTH} deep"
            raise UnreadableInput(f"{self.folder} was not judged: {what}; name a folder inside it")
        beside = beside or _is_incident(folder)
        kind = None if beside else recognise(folder)
        if kind == "deepspeed" and not deepspeed._shards(folder):
            self.found += deepspeed.tags_of(folder)
            named = deepspeed.folder_of(folder)
            if named is None or not named.is_dir():
                self.found.append(folder)  # the problem is reported for the folder that names it
            return
        if kind is not None:
            self.found.append(folder)
        for entry in inside:
            self._entry(entry, kind, depth, beside=beside)

    def _entry(
        self, entry: os.DirEntry[str], kind: str | None, depth: int, *, beside: bool
    ) -> None:
        path = Path(entry.path)
        try:
            is_folder = is_own_folder(path)
        except OSError:
            return
        if is_folder:
            # Trainers write the last model into the folder that has the checkpoints. The other
            # folders of a checkpoint, and hidden ones, have no checkpoints of the run.
            own = kind is not None and not entry.name.startswith(_OF_A_RUN)
            if entry.name not in _SKIPPED:
                hidden = entry.name.startswith(".")
                self.look_in(path, depth + 1, beside=beside or own or hidden)
        elif kind != "hf-folder" and not (kind and entry.name.endswith("_states.pt")):
            self._file(path, beside=beside or kind is not None)

    def _file(self, path: Path, *, beside: bool) -> None:
        """`beside`: its folder has no state to resume from; only what is unsafe in it counts."""
        other = path.suffix.lower() in _NO_FILES and not path.name.endswith(_SHARD_INDEX)
        beside = beside or other or path.name in _BESIDE
        beside = beside or (
            _OF_A_RANK.fullmatch(path.stem) is not None and path.with_suffix(".json").exists()
        )
        real = os.path.realpath(path)
        if real in self.seen:
            return
        self.seen.add(real)
        with contextlib.suppress(OSError):
            if recognise(path) is None and not is_unwritten_checkpoint(path):
                return
            if not beside or _is_unsafe(path):
                self.found.append(path)


def _is_incident(folder: Path) -> bool:
    """Whether it has an `incident.json`. What only has the name hides nothing: a FIFO, say."""
    path = folder / _INCIDENT
    try:
        return is_own_file(path) and isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False


def _is_unsafe(path: Path) -> bool:
    try:
        return any(problem.kind != "unreadable" for problem in open_checkpoint(path).problems)
    except UnreadableInput as error:
        return isinstance(error, NotJudged)


def _ordered(found: list[Path]) -> list[Path]:
    open_all = len(found) <= MAX_OPENED

    def key(path: Path) -> tuple[int, int, float, str]:
        step = checkpoint_info.step_from_name(path)
        if open_all:
            with contextlib.suppress(UnreadableInput):
                step = open_checkpoint(path).step
        try:
            changed = path.stat().st_mtime
        except OSError:
            changed = 0.0
        # Without a step after those with one: `last` and `final` have none.
        return (step is None, step or 0, changed if step is None else 0.0, str(path))

    return sorted(found, key=key)
