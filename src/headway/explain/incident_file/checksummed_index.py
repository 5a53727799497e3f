"""Writes and reads an incident's folder and index, with checksums that show whether a file is what
was written.

A tensor file has its length and checksum in the index beside it; the index has a checksum of its
own content. The folder is filled under another name, synced, and renamed: it appears whole or not
at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.torch_adapters import nested_state
from headway.torch_adapters.nested_state import (
    compute_seal,
    numbered_folders,
    sync_folder,
    write_synced_text,
)

LARGEST_INDEX = 1 << 26
"""A longer index is none of ours: not read into memory."""
UNFINISHED_PREFIX = ".new-"
"""How the names of folders begin that are being filled."""
STALE_SECONDS = 3600.0
"""Nobody fills a folder for so long: its process was killed."""


def write_folder(
    home: Path, step: int, fill: Callable[[Path], None], name: Callable[[Path, Path], None]
) -> Path:
    """A new folder `<n>-step<k>` in `home`, as `fill` has filled it; `name` adds what depends on
    how it will be called. Raises what these raise."""
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    fresh = home / f"{UNFINISHED_PREFIX}{uuid.uuid4().hex}"
    fresh.mkdir()
    try:
        fill(fresh)
        folder = _rename_into_place(home, step, fresh, name)
    except BaseException:  # also a KeyboardInterrupt: nothing half written stays behind
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    sync_folder(home)
    return folder


def _sweep(home: Path) -> None:
    """Take away what processes have left that were killed while they wrote."""
    for left in home.glob(f"{UNFINISHED_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _rename_into_place(
    home: Path, step: int, fresh: Path, name: Callable[[Path, Path], None]
) -> Path:
    number = max((found for found, _, _ in numbered_folders(home)), default=0)
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


def write_index(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data with a checksum of itself."""
    plain = json.loads(json.dumps(content, allow_nan=False, default=_encode_json))
    write_synced_text(path, json.dumps({**plain, "seal": _checksum(plain)}, indent=2) + "\n")


def _encode_json(value: Any) -> Any:
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
            f"{path} is damaged or no incident of headway: {str(error)[:80]}"
        ) from error
    if not isinstance(content, dict) or "seal" not in content:
        raise UnreadableInput(f"{path} is no incident of headway: it has no seal")
    seal = content.pop("seal")
    if seal != _checksum(content):
        raise UnreadableInput(
            f"{path} is damaged or was changed by hand: its checksum does not match. "
            "Copy the incident again from where it was made"
        )
    return content


def check_checksum(path: Path, seal: Mapping[str, Any]) -> None:
    """Raise UnreadableInput unless a file holds the bytes that were written."""
    again = "copy the incident again from where it was made"
    try:
        if not path.is_file():
            raise UnreadableInput(f"{path} is missing: {again}")
        found = compute_seal(path, seal["bytes"])
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    if found["bytes"] != seal["bytes"]:
        raise UnreadableInput(
            f"{path} is damaged: {found['bytes']} bytes instead of {seal['bytes']}; {again}"
        )
    if found["sha256"] != seal["sha256"]:
        raise UnreadableInput(f"{path} is damaged: its checksum does not match; {again}")


def load_tensors(path: Path) -> Any:
    """Tensors and plain data, and nothing that could run."""
    try:
        return nested_state.load_file(path)
    except Exception as error:  # whatever torch raises for what it does not trust
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnreadableInput(f"{path} cannot be loaded safely: {first[:120]}") from error


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
