"""What a checkpoint contains: named byte ranges, facts, problems, and the step it was saved at."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# What a checkpoint is to a reader: named byte ranges, plain facts, and what is wrong with it.

# Nothing here holds a value of a tensor. A range is measured later, a chunk at a time.


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes in a file."""

    file: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Inflate:
    """The span is deflated; the tensor lies so far into what comes out."""

    skip: int
    length: int


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor of a checkpoint, and where its bytes are."""

    name: str
    role: str
    """`weight`, `buffer`, `moment` or `other`."""
    dtype: str
    shape: tuple[int, ...]
    span: Span
    stride: tuple[int, ...] | None = None
    """In elements; None: contiguous."""
    byteorder: Literal["little", "big"] = "little"
    inflate: Inflate | None = None
    parts: tuple[TensorPart, ...] = ()
    """The pieces of a tensor that was saved by several ranks; `span` is the first one's."""

    @property
    def numel(self) -> int:
        """How many elements it has."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes to be read for it."""
        if self.parts:
            return sum(part.tensor.nbytes for part in self.parts)
        return self.inflate.length if self.inflate is not None else self.span.length


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A piece of a tensor, and its first index in the whole."""

    at: tuple[int, ...]
    tensor: SavedTensor


@dataclass
class Problem:
    """What is wrong with a file; becomes a finding."""

    kind: Literal["unreadable", "unsafe"]
    message: str
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Checkpoint:
    """A checkpoint that was looked through, whole or not."""

    path: Path
    """What a person would hand to torch.load or from_pretrained."""
    format: str
    step: int | None = None
    tensors: list[SavedTensor] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


# The step a checkpoint was made at, from what it says or from its name.

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


def step_from_name(path: Path) -> int | None:
    """The step a name speaks of; an epoch where it speaks of nothing else."""
    for pattern in (*_NAMED, _EPOCH):
        found = pattern.search(path.name)
        if found is not None:
            return int(found.group(1))
    return None


def step_from_snapshot(path: Path) -> int | None:
    """The run's own step, where a file lies in a snapshot of a guarded run.

    Its moments count the updates that were applied, without those held back and rolled back.
    """
    found = _SNAPSHOT.fullmatch(path.parent.name)
    return int(found.group(1)) if found is not None else None


def step_from_content(value: Any) -> int | None:
    """The step a dict tells."""
    return _first(value, STEP_KEYS)


def epoch_from_content(value: Any) -> int | None:
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
