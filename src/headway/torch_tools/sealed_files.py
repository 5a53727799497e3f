"""Files of tensors and plain data whose length and checksum are known, and stay on the disk.

Snapshots and incidents are made of them. A *seal* is `{"bytes": …, "sha256": …}`.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from headway.torch_tools import safe_loading

_NAME = re.compile(r"([0-9]+)-step([0-9]+)")


def numbered(home: Path) -> list[tuple[int, int, Path]]:
    """(number, step, folder) of the folders `<n>-step<k>`, the newest first."""
    try:
        names = os.listdir(home)
    except OSError:
        return []
    matches = ((_NAME.fullmatch(name), name) for name in names)
    return sorted(((int(m[1]), int(m[2]), home / name) for m, name in matches if m), reverse=True)


def save(path: Path, content: Any) -> dict[str, Any]:
    """Write tensors and plain data, and wait for the disk; the seal of the file.

    Raises OSError, or torch's RuntimeError where the disk is full.
    """
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        torch.save(content, cast(BinaryIO, hashing))
        _sync(file)
    return {"bytes": hashing.count, "sha256": hashing.digest.hexdigest()}


def load(path: Path) -> Any:
    """Tensors and plain data, and nothing that could run."""
    return safe_loading.load(path, map_location="cpu")


def write_text(path: Path, text: str) -> None:
    """Write a text, and wait for the disk."""
    with open(path, "wb") as file:
        file.write(text.encode("utf-8", errors="replace"))
        _sync(file)


def seal_of(path: Path, expected: int | None = None) -> dict[str, Any]:
    """The seal of a file; only its length where that is not the expected one."""
    length = path.stat().st_size
    if expected is not None and length != expected:
        return {"bytes": length}
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": length, "sha256": digest.hexdigest()}


def sync_folder(folder: Path) -> None:
    """Names, too, are only on disk after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


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
