"""Reads the settings that a run left beside its logs and checkpoints: learning rate, warm-up,
clipping, precision.

Every framework writes them somewhere else and calls them otherwise. What is found becomes facts of
the header under our own names; nothing is executed, and a file that cannot be read is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LARGEST = 4 << 20
"""Bytes: a larger file holds no settings."""
DEEPEST = 6
"""Levels of nesting that are looked into."""

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
"""The more exact first: what one says, a later one does not change."""

_NAMES: dict[str, tuple[str, ...]] = {
    "learning_rate": ("learning_rate", "lr", "base_lr", "lr0", "max_lr"),
    "warmup_steps": ("warmup_steps", "num_warmup_steps", "lr_warmup_steps", "warmup_iters"),
    "warmup_ratio": ("warmup_ratio", "lr_warmup_fraction"),
    "max_norm": (
        "max_grad_norm",
        "gradient_clip_val",
        "clip_grad",
        "grad_clip",
        "clip_grad_norm",
        "gradient_clipping",
        "max_norm",
        "grad_norm_clip",
        "grad_clip_norm",
        "gradient_clip_norm",
    ),
    "precision": ("precision", "mixed_precision", "amp_dtype"),
    "batch_size": (
        "per_device_train_batch_size",
        "batch_size",
        "train_batch_size",
        "batch",
        "micro_batch_size",
        "global_batch_size",
    ),
    "accumulation": (
        "gradient_accumulation_steps",
        "accumulate_grad_batches",
        "grad_accum",
        "accum_steps",
    ),
    "logging_steps": ("logging_steps",),
    "optimizer": ("optim", "optimizer"),
    "scheduler": ("lr_scheduler_type", "scheduler", "lr_decay_style"),
    "weight_decay": ("weight_decay", "wd"),
    "seed": ("seed",),
    "logging_nan_inf_filter": ("logging_nan_inf_filter",),
    "torch_dtype": ("torch_dtype", "dtype"),
    "tie_word_embeddings": ("tie_word_embeddings",),
}
_OURS = {theirs: ours for ours, names in _NAMES.items() for theirs in reversed(names)}
_NUMBERS = {
    "learning_rate",
    "warmup_steps",
    "warmup_ratio",
    "max_norm",
    "batch_size",
    "accumulation",
    "logging_steps",
    "weight_decay",
    "seed",
}
_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w.\-/]+) *:(?: +(?P<value>.*?))? *$")


def settings_beside(path: Path) -> dict[str, Any]:
    """The settings in a checkpoint's folder (or beside its file), and in the folder above it."""
    folder = path if path.is_dir() else path.parent
    return settings_in([folder, folder.parent] if path.is_dir() else [folder])


def settings_in(folders: Iterable[Path]) -> dict[str, Any]:
    """What the files of these folders tell, the first that tells a thing being right."""
    found: dict[str, Any] = {}
    for folder in folders:
        for name in FILES:
            for key, value in named(_read(folder / name)).items():
                found.setdefault(key, value)
    return found


def named(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under our own names; whatever is not of its kind is left out."""
    found: dict[str, Any] = {}
    rank: dict[str, int] = {}
    for key, value in _flat(raw):
        ours = _OURS.get(key)
        fit = None if ours is None else _fit(ours, value)
        if ours is None or fit is None:
            continue
        place = _NAMES[ours].index(key)
        if place < rank.get(ours, len(_NAMES[ours])):
            found[ours], rank[ours] = fit, place
    for flag, word in (("fp16", "fp16"), ("bf16", "bf16")):
        if _plain(raw, flag) is True:
            found.setdefault("precision", word)
    if found.get("max_norm") == 0:
        del found["max_norm"]  # 0 is how frameworks write "do not clip"
    if str(found.get("precision", "")).lower() in ("no", "none", "off", "false"):
        del found["precision"]
    return found


def _fit(ours: str, value: Any) -> Any:
    if ours in _NUMBERS:
        number = _number(value)
        return number if number is not None and number >= 0 else None
    if isinstance(value, bool) or (isinstance(value, (str, int)) and str(value)):
        return value
    return None


def _number(value: Any) -> float | int | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else None
    return value if math.isfinite(value) else None


def _flat(raw: Mapping[str, Any], depth: int = 0) -> Iterable[tuple[str, Any]]:
    """(last part of the name, value), the outer ones first."""
    inner = []
    for key, value in raw.items():
        if isinstance(value, Mapping) and "value" in value and len(value) <= 2:
            yield str(key).lower(), value["value"]  # how W&B writes its config.yaml
        elif isinstance(value, Mapping):
            inner.append(value)
        else:
            yield str(key).rpartition(".")[2].rpartition("/")[2].lower(), value
    for item in inner:
        if depth < DEEPEST:
            yield from _flat(item, depth + 1)


def _plain(raw: Mapping[str, Any], key: str) -> Any:
    return raw.get(key)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return {}
        if path.suffix == ".bin":
            return _inert(path)
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    if path.suffix == ".json":
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}
    return yaml_subset(text)


def _inert(path: Path) -> Mapping[str, Any]:
    from headway.checkpoints.pickled_settings import settings_of
    from headway.errors import HeadwayError

    try:
        found = settings_of(path)
    except HeadwayError:
        return {}
    return found


def yaml_subset(text: str) -> dict[str, Any]:
    """The plain `key: value` lines of a YAML file, nested ones by their indentation.

    Lists, anchors, tags and texts of several lines are not read: no setting of ours is one.
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
            if len(open_at) < DEEPEST:
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
