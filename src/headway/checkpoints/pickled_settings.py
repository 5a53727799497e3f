"""Reads the settings of a run from a pickle, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.checkpoints.formats import torch_file
from headway.checkpoints.pickle_values import Global, Stub
from headway.checkpoints.tensor_bytes import Lost
from headway.errors import UnreadableInput

MAX_DEPTH = 8
_NOTHING = object()
_WHERE = ("hyper_parameters", "hparams", "args", "config", "cfg", "opt")


def settings_of(path: Path) -> dict[str, Any]:
    """Every attribute that is a plain value; objects of unknown classes only by what they hold."""
    try:
        with open(path, "rb") as file:
            opened = torch_file.read(path, file)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    except Lost as error:
        raise UnreadableInput(f"{path}: {error}") from error
    root = opened.value
    if opened.loaded.damage is not None and not isinstance(root, (dict, Stub)):
        raise UnreadableInput(f"{path} is no pickle of arguments: {opened.loaded.damage}")
    if isinstance(root, dict) and any(key in root for key in _WHERE):
        root = next(root[key] for key in _WHERE if key in root)
    found = plain(root)
    if not isinstance(found, dict):
        raise UnreadableInput(f"{path} holds no arguments by name")
    return {str(key): value for key, value in found.items()}


def plain(value: Any, depth: int = 0) -> Any:
    """The value without stubs: a member of an enum is its value, a class its name."""
    found = _plain(value, depth)
    return None if found is _NOTHING else found


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value) if type(value) not in (bool, int, float, str, type(None)) else value
    if depth > MAX_DEPTH:
        return _NOTHING
    if isinstance(value, Global):
        return str(value)
    if isinstance(value, dict):
        pairs = ((key, _plain(inside, depth + 1)) for key, inside in value.items())
        return {str(key): inside for key, inside in pairs if inside is not _NOTHING}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [inside for item in value if (inside := _plain(item, depth + 1)) is not _NOTHING]
    if isinstance(value, Stub):
        attributes = {**value.attributes, **value.pairs}
        if "_content" in attributes and "_metadata" in attributes:  # OmegaConf
            return _plain(attributes["_content"], depth + 1)
        if "_val" in attributes and "_metadata" in attributes:
            return _plain(attributes["_val"], depth + 1)
        if attributes:
            return _plain(attributes, depth)
        if len(value.args) == 1:
            return _plain(value.args[0], depth + 1)
    return _NOTHING
