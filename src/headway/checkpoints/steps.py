"""The step a checkpoint was made at, from what it says or from its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

STEP_KEYS = (
    "global_step",
    "global_steps",
    "step",
    "iteration",
    "iter",
    "iter_num",
    "iters",
    "current_step",
    "train_step",
    "trainer_step",
    "num_updates",
    "n_iter",
    "it",
    "last_step",
    "steps",
    "update",
    "updates",
    "step_num",
    "step_count",
)
EPOCH_KEYS = ("epoch", "current_epoch", "epochs", "last_epoch", "epoch_num")
MAX_STEP = 1 << 53

_NAMED = (
    re.compile(r"(?:^|[^a-z])(?:global[_-]?)?steps?[=_\-.]?(\d{1,15})", re.IGNORECASE),
    re.compile(r"(?:^|[^a-z])iter(?:ation)?s?[=_\-.]?(\d{1,15})", re.IGNORECASE),
    re.compile(
        r"(?:^|[^a-z])(?:checkpoint|ckpt|chkpt|model|weights|snapshot|state|it|s|update)"
        r"[=_\-.]?(\d{1,15})(?!\d*-of-)",
        re.IGNORECASE,
    ),
    re.compile(r"(?:^|[^a-z0-9])(\d{1,15})[_-]?steps?(?:[^a-z]|$)", re.IGNORECASE),
    re.compile(r"^(\d{1,15})(?:$|\.)"),
)
_SNAPSHOT = re.compile(r"\d+-step(\d{1,15})")
"""The folder of a guarded run's snapshot."""
_EPOCH = re.compile(r"(?:^|[^a-z])ep(?:och)?s?[=_\-.]?(\d{1,9})", re.IGNORECASE)


def of_name(path: Path) -> int | None:
    """The step a name speaks of; an epoch where it speaks of nothing else."""
    for pattern in (*_NAMED, _EPOCH):
        found = pattern.search(path.name)
        if found is not None:
            return int(found.group(1))
    return None


def of_snapshot(path: Path) -> int | None:
    """The run's own step, where a file lies in a snapshot of a guarded run.

    Its moments count the updates that were applied, without those held back and rolled back.
    """
    found = _SNAPSHOT.fullmatch(path.parent.name)
    return int(found.group(1)) if found is not None else None


def of_content(value: Any) -> int | None:
    """The step a dict tells."""
    return _first(value, STEP_KEYS)


def epoch_of(value: Any) -> int | None:
    """The epoch a dict tells."""
    return _first(value, EPOCH_KEYS)


def _first(value: Any, keys: tuple[str, ...]) -> int | None:
    if not isinstance(value, dict):
        return None
    for key in keys:
        said = value.get(key)
        if isinstance(said, float) and said.is_integer():
            said = int(said)
        if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < MAX_STEP:
            return said
    for nest in ("meta", "info", "trainer_state", "train_state", "state", "progress"):
        inside = value.get(nest)
        if isinstance(inside, dict) and inside is not value:
            found = _first({key: inside[key] for key in keys if key in inside}, keys)
            if found is not None:
                return found
    return None
