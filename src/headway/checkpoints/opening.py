"""What a path is, by its content, and everything that can be read of it."""

from __future__ import annotations

import os
from pathlib import Path

from headway.checkpoints import members, npz, safetensors, torch_file, zips
from headway.checkpoints.dcp import is_dcp
from headway.checkpoints.dcp import read as read_dcp
from headway.checkpoints.deepspeed import folder_of as deepspeed_folder
from headway.checkpoints.deepspeed import read as read_deepspeed
from headway.checkpoints.hf_folder import is_hf_folder, read_sharded
from headway.checkpoints.hf_folder import read as read_hf
from headway.checkpoints.locate import Lost
from headway.checkpoints.mistaken import what_it_is
from headway.checkpoints.model import Checkpoint
from headway.checkpoints.torch_legacy import MAGIC
from headway.errors import UnreadableInput

SUPPORTED = (
    "torch.save files (.pt, .pth, .bin, .ckpt), TorchScript, safetensors, Hugging Face checkpoint "
    "folders, distributed checkpoints (DCP), DeepSpeed folders, .npz"
)
_SCANNED_PICKLE = 1 << 20


def recognise(path: Path) -> str | None:
    """The format of a file or folder; None: not a checkpoint."""
    path = Path(path)
    try:
        if path.is_dir():
            return _recognise_folder(path)
        return _recognise_file(path) if path.is_file() else None
    except OSError:
        return None


def _recognise_folder(path: Path) -> str | None:
    if is_dcp(path):
        return "dcp"
    if is_hf_folder(path):
        return "hf-folder"
    if deepspeed_folder(path) is not None:
        return "deepspeed"
    index = next(iter(sorted(path.glob("*.safetensors.index.json"))), None)
    return "safetensors-sharded" if index is not None else None


def _recognise_file(path: Path) -> str | None:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(64)
        if head[:4] == zips.MAGIC:
            return _recognise_zip(path, size)
        if safetensors.recognised(head, size):
            return "safetensors"
        if head.startswith(MAGIC):
            return _lightning(file.read(_SCANNED_PICKLE), "torch-legacy")
        if members.looks_like_pickle(head):
            opened = torch_file.read(path, file)
            return "pickle" if torch_file.worth_reading(opened) else None
    if head[:1] in b"{ \n" and path.name.endswith(".index.json"):
        names = safetensors.index_of(path)
        if names is not None:
            some = next(iter(names.values()))
            return "safetensors-sharded" if some.endswith(".safetensors") else "torch-sharded"
    return None


def _recognise_zip(path: Path, size: int) -> str | None:
    with open(path, "rb") as file:
        try:
            names = list(zips.directory(file, size))
        except zips.BadZip:
            first = zips.local_name(file, 0)
            names = [first[0]] if first is not None else []
        pickled = any(name.endswith("data.pkl") for name in names)
        if pickled and any(name.endswith("constants.pkl") for name in names):
            return "torchscript"
        file.seek(0)
        if pickled:
            return _lightning(file.read(_SCANNED_PICKLE), "torch-zip")
    if any("/data/" in name for name in names):
        return "torch-zip"
    return "npz" if names and all(name.endswith(".npy") for name in names) else None


def _lightning(start: bytes, otherwise: str) -> str:
    return "lightning" if b"pytorch-lightning_version" in start else otherwise


NO_SENSE = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)


def open_checkpoint(path: Path) -> Checkpoint:
    """Everything that can be read of a checkpoint, and what is wrong with it."""
    path = Path(path)
    if not path.exists():
        raise UnreadableInput(f"{path} does not exist")
    try:
        return _open(path)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise UnreadableInput(f"{path} is nested too deeply") from error
    except NO_SENSE as error:
        # A file may hold anything where a list or a number is expected. Each reader looks; where
        # one has not looked closely enough, a person still gets an answer.
        if os.environ.get("HEADWAY_STRICT") == "1":
            raise
        raise UnreadableInput(f"{path} makes no sense as a checkpoint: {error}") from error


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
    if kind is None:
        what = "a folder without a checkpoint" if path.is_dir() else _what(path)
        raise UnreadableInput(f"{path} is {what}; supported: {SUPPORTED}")
    with open(path, "rb") as file:
        try:
            opened = torch_file.read(path, file)
        except Lost as error:
            raise UnreadableInput(f"{path}: {error}; supported: {SUPPORTED}") from error
    return torch_file.checkpoint(path, opened)


def with_permission(path: Path) -> None:
    """Say that a file may not be read, rather than that it is unknown."""
    if path.is_dir():
        next(path.iterdir(), None)
    else:
        with open(path, "rb"):
            pass


def _what(path: Path) -> str:
    if path.stat().st_size == 0:
        return "empty (0 bytes)"
    return what_it_is(path) or "no checkpoint headway knows"
