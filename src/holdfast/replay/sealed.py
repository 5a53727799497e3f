"""Files that tell whether they are what was written.

A tensor file has its length and checksum in the index beside it; the index has a checksum of its
own content. The folder is filled under another name, synced, and renamed: it appears whole or not
at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from holdfast.errors import UnreadableInput

LARGEST_INDEX = 1 << 26
"""A longer index is none of ours: not read into memory."""
_NAME = re.compile(r"([0-9]+)-step([0-9]+)")


def numbered(home: Path) -> list[tuple[int, int, Path]]:
    """(number, step, folder) of the folders `<n>-step<k>`, the newest first."""
    try:
        names = os.listdir(home)
    except OSError:
        return []
    matches = ((_NAME.fullmatch(name), name) for name in names)
    return sorted(((int(m[1]), int(m[2]), home / name) for m, name in matches if m), reverse=True)


def write_folder(
    home: Path, step: int, fill: Callable[[Path], None], name: Callable[[Path, Path], None]
) -> Path:
    """A new folder `<n>-step<k>` in `home`, as `fill` has filled it; `name` adds what depends on
    how it will be called. Raises what these raise."""
    home.mkdir(parents=True, exist_ok=True)
    fresh = home / f".new-{uuid.uuid4().hex}"
    fresh.mkdir()
    try:
        fill(fresh)
        folder = _take_place(home, step, fresh, name)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    sync_folder(home)
    return folder


def _take_place(home: Path, step: int, fresh: Path, name: Callable[[Path, Path], None]) -> Path:
    number = max((found for found, _, _ in numbered(home)), default=0)
    while True:  # another rank may have taken the number meanwhile
        number += 1
        folder = home / f"{number}-step{step}"
        if folder.exists():
            continue
        name(fresh, folder)
        sync_folder(fresh)
        try:
            os.rename(fresh, folder)
        except OSError:
            if not folder.exists():
                raise
            continue
        return folder


def save(path: Path, content: Any) -> dict[str, Any]:
    """Write tensors and plain data; the seal of the file."""
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        torch.save(content, cast(BinaryIO, hashing))
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": hashing.count, "sha256": hashing.digest.hexdigest()}


def write_text(path: Path, text: str) -> None:
    """Write a text, and wait for the disk."""
    with open(path, "wb") as file:
        file.write(text.encode("utf-8", errors="replace"))
        file.flush()
        os.fsync(file.fileno())


def write_index(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data with a checksum of itself."""
    plain = json.loads(json.dumps(content, allow_nan=False, default=_said))
    write_text(path, json.dumps({**plain, "seal": _seal(plain)}, indent=2) + "\n")


def _said(value: Any) -> Any:
    """What JSON has no word for: NumPy's numbers as numbers, all else by its text."""
    scalar = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if scalar else str(value)


def read_index(path: Path) -> dict[str, Any]:
    """What `write_index` wrote. Raises UnreadableInput if it is anything else."""
    try:
        if path.stat().st_size > LARGEST_INDEX:
            raise ValueError("it is far too long")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(
            f"{path} is damaged or no incident of holdfast: {str(error)[:80]}"
        ) from error
    if not isinstance(content, dict) or "seal" not in content:
        raise UnreadableInput(f"{path} is no incident of holdfast: it has no seal")
    seal = content.pop("seal")
    if seal != _seal(content):
        raise UnreadableInput(
            f"{path} is damaged or was changed by hand: its checksum does not match. "
            "Copy the incident again from where it was made"
        )
    return content


def demand_sealed(path: Path, seal: Mapping[str, Any]) -> None:
    """Raise UnreadableInput unless a file holds the bytes that were written."""
    again = "copy the incident again from where it was made"
    try:
        if not path.is_file():
            raise UnreadableInput(f"{path} is missing: {again}")
        length = path.stat().st_size
        if length != seal["bytes"]:
            raise UnreadableInput(
                f"{path} is damaged: {length} bytes instead of {seal['bytes']}; {again}"
            )
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    if digest.hexdigest() != seal["sha256"]:
        raise UnreadableInput(f"{path} is damaged: its checksum does not match; {again}")


def load(path: Path) -> Any:
    """Tensors and plain data, and nothing that could run."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever torch raises for what it does not trust
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnreadableInput(f"{path} cannot be loaded safely: {first[:120]}") from error


def _seal(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class _Hashing:
    """A file that knows the checksum of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.count = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.count += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def sync_folder(folder: Path) -> None:
    """Names, too, are only on disk after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
