"""Reads the settings that a run left beside its logs and checkpoints: learning rate, warm-up,
clipping, precision.

Each framework writes them to another file under other names. They become facts of the header under
the names of `logs/setting_names.py`. Nothing is executed, and an unreadable file is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headway.checkpoints.folder_access import is_own_file
from headway.errors import HeadwayError, UnreadableInput
from headway.logs.setting_names import MAX_DEPTH, named_settings

MAX_FILE_BYTES = 4 << 20
"""A larger file is not a settings file."""

FILES = (
    "training_args.bin",
    "args.json",
    "training_args.json",
    "hparams.yaml",
    "args.yaml",
    "config.yaml",
    ".hydra/config.yaml",
    "config.json",
    "params.json",
)
"""The most exact first: a setting from one file is not changed by a later file."""

_SETTINGS_KEYS = ("hyper_parameters", "hparams", "args", "config", "cfg", "opt")
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w.\-/]+) *:(?: +(?P<value>.*?))? *$")


def settings_beside(path: Path) -> dict[str, Any]:
    """The settings in a checkpoint's folder (or beside its file), and in the folder above it."""
    folder = path if path.is_dir() else path.parent
    return settings_in([folder, folder.parent] if path.is_dir() else [folder])


def settings_in(folders: Iterable[Path]) -> dict[str, Any]:
    """The settings in the files of these folders; the first file that has a setting wins."""
    found: dict[str, Any] = {}
    for folder in folders:
        for name in FILES:
            for key, value in named_settings(_read(folder / name)).items():
                found.setdefault(key, value)
    return found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if not is_own_file(path) or path.stat().st_size > MAX_FILE_BYTES:
            return {}
        if path.suffix == ".bin":
            return settings_of(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    except (OSError, HeadwayError):
        return {}
    if path.suffix == ".json":
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}
    return yaml_subset(text)


def yaml_subset(text: str) -> dict[str, Any]:
    """The plain `key: value` lines of a YAML file, nested ones by their indentation.

    Lists, anchors, tags and multi-line strings are skipped: no setting needs them.
    """
    root: dict[str, Any] = {}
    open_at: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for line in text.splitlines()[:20_000]:
        match = _LINE.match(line.split(" #")[0].rstrip())
        if match is None:
            continue
        indent = len(match["indent"])
        while len(open_at) > 1 and open_at[-1][0] >= indent:
            open_at.pop()
        value = match["value"]
        if value is None or value == "":
            inner: dict[str, Any] = {}
            open_at[-1][1][match["key"]] = inner
            if len(open_at) < MAX_DEPTH:
                open_at.append((indent, inner))
        else:
            open_at[-1][1][match["key"]] = _scalar(value)
    return root


def _scalar(text: str) -> Any:
    bare = text.strip().strip("'\"")
    if bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    if bare.lower() in ("null", "~", "none", ""):
        return None
    try:
        return int(bare)
    except ValueError:
        pass
    try:
        return float(bare)
    except ValueError:
        return bare


def settings_of(path: Path) -> dict[str, Any]:
    """The plain values in a pickle; of an object of an unknown class, its attributes."""
    # Most runs have no pickled settings: the pickle machine is not imported for them.
    from headway.checkpoints.formats import torch_file
    from headway.checkpoints.pickle_values import Stub, plain_value
    from headway.checkpoints.tensor_bytes import Lost

    try:
        with open(path, "rb") as file:
            opened = torch_file.read(path, file)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    except Lost as error:
        raise UnreadableInput(f"{path}: {error}") from error
    root = opened.value
    if opened.loaded.damage is not None and not isinstance(root, (dict, Stub)):
        raise UnreadableInput(f"{path} is not a pickle of arguments: {opened.loaded.damage}")
    if isinstance(root, dict) and any(key in root for key in _SETTINGS_KEYS):
        root = next(root[key] for key in _SETTINGS_KEYS if key in root)
    found = plain_value(root)
    if not isinstance(found, dict):
        raise UnreadableInput(f"{path} contains no named arguments")
    return {str(key): value for key, value in found.items()}
