"""Works out the step of each row from the step, batch and epoch counters in a console line.

`step 120` is a step. `Epoch [3/10], Step [100/500]` is step 1100: the second counter starts over in
every epoch. A single line does not show which of the two it is, so the raw counters are collected
and evaluated at the end.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.logs.log_table import Unit

ABSENT = -1
LARGEST = 1 << 40
"""Largest step counter."""
LARGEST_EPOCH = 1 << 20
"""Largest epoch counter."""

_STEP_WORDS = {
    "global_step": 0,
    "step": 1,
    "iteration": 2,
    "iter": 2,
    "it": 3,
    "itr": 2,
    "update": 3,
}
_STEP_WORDS |= {"num_updates": 1, "minibatch": 5, "batch": 5, "batch_idx": 5, "current_steps": 1}
_STEP_WORDS |= {"episode": 6, "round": 6, "timestep": 3}
_PLURALS = {"steps": 4, "iters": 4, "iterations": 4, "updates": 4, "batches": 5, "epochs": -1}
"""Usually settings (`epochs: 10`), but counters if there is a total (`steps 3/10`)."""
_EPOCH_WORDS = frozenset({"epoch", "ep"})
_NO_COUNTER = re.compile(
    r"\bper\b|time|/|\bsec|second|_s$|size|total|max|num_(?!updates)|number|warm|save|eval|log|every"
    r"|skip|nan|accum|best|last|from|interval|patience|left|remain|bad|decay",
    re.IGNORECASE,
)
_kinds: dict[str, int] = {}


def counter_kind(name: str, of: float | None = None) -> int:
    """What a name counts: -1 epochs, 0 to 6 steps (a lower number is better), 99 nothing."""
    if of is not None and name.lower() in _PLURALS:
        return _PLURALS[name.lower()]
    kind = _kinds.get(name)
    if kind is None:
        if len(_kinds) > 10_000:
            _kinds.clear()
        kind = _kinds[name] = _kind(name)
    return kind


def _kind(name: str) -> int:
    low = name.lower().replace("-", "_")
    low = re.sub(r"\((?:train|training)\)$|^(?:train|training)[/_ ]", "", low).strip()
    if low == "total_timesteps":
        return 1
    if _NO_COUNTER.search(low):
        return 99
    if low in _STEP_WORDS:
        return _STEP_WORDS[low]
    if low in _EPOCH_WORDS:
        return -1
    if low in ("global step", "globalstep"):
        return 0
    last = re.split(r"[ _]", low)[-1]
    if last in ("epoch",) and low.count(" ") <= 2:
        return -1
    if last in ("step", "iteration", "iter") and low.count(" ") <= 2:
        return _STEP_WORDS[last]
    return 99


@dataclass(slots=True)
class StepCounters:
    """The raw counters of every row."""

    epochs: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    totals: array[int] = field(default_factory=lambda: array("q"))
    first_epoch: int | None = None
    """The number of the first epoch, if the counter is known to start over in each."""

    def add(self, epoch: int = ABSENT, count: int = ABSENT, total: int = ABSENT) -> None:
        """Adds the counters of a row; `ABSENT` if the line has none."""
        self.epochs.append(epoch)
        self.counts.append(count)
        self.totals.append(total)

    def steps(self) -> tuple[array[int], Unit]:
        """The step of every row, and what it counts."""
        counts = np.array(self.counts, dtype=np.int64)
        epochs = np.array(self.epochs, dtype=np.int64)
        if not len(counts):
            return array("q"), "row"
        if (counts >= 0).any():
            totals = np.array(self.totals, dtype=np.int64)
            steps = _steps(_filled(epochs), counts, totals, self.first_epoch)
            return array("q", steps.tolist()), "step"
        if (epochs >= 0).any():
            return array("q", _filled(epochs).tolist()), "epoch"
        return array("q", range(1, len(counts) + 1)), "row"


def _filled(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Fills absent values from the row before; at the start, from the first row that has one."""
    known = values >= 0
    if not known.any():
        return values
    at = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return values[np.where(at < 0, int(np.argmax(known)), at)]


def _steps(
    epochs: NDArray[np.int64],
    counts: NDArray[np.int64],
    totals: NDArray[np.int64],
    first: int | None,
) -> NDArray[np.int64]:
    known = np.flatnonzero(counts >= 0)
    own, total, epoch = counts[known], totals[known], epochs[known]
    if (epoch < 0).any():
        epoch = _laps(own, total)
        first = None
    steps = own + _before(epoch, own, total, first)
    placed = np.full(len(counts), ABSENT, dtype=np.int64)
    placed[known] = steps
    return _filled(placed)


def _laps(own: NDArray[np.int64], total: NDArray[np.int64]) -> NDArray[np.int64]:
    """Epochs that are not printed: `1/500 … 500/500, 1/500 …` starts over after its end."""
    back = np.flatnonzero(np.diff(own) < 0)
    laps = np.zeros(len(own), dtype=np.int64)
    if not len(back) or (total <= 0).any() or len(np.unique(total)) != 1:
        return laps
    stride = max(int(np.median(np.abs(np.diff(own)))), 1)
    if (own[back] < total[back] - stride).any():
        return laps
    laps[back + 1] = 1
    return np.cumsum(laps)


def _before(
    epoch: NDArray[np.int64],
    own: NDArray[np.int64],
    total: NDArray[np.int64],
    first: int | None,
) -> NDArray[np.int64]:
    """Steps of the epochs before each row, if the counter starts over in each epoch."""
    nothing = np.zeros(len(own), dtype=np.int64)
    changes = np.flatnonzero(np.diff(epoch) > 0)
    if first is not None:
        pass
    elif len(changes):
        restarts = own[changes + 1] < own[changes]
        same = (own == own[0]).all() and len(changes) > 1
        if not same and restarts.mean() < 0.5:
            return nothing  # the counter continues over epochs
    else:
        # A single epoch: the counter starts over only if this is a later epoch that begins at 0.
        if int(epoch[0]) < 2 or int(total[0]) <= 0 or int(own[0]) > int(total[0]) // 2:
            return nothing
    base = min(int(epoch.min()), 1) if first is None else first
    sizes = total[total > 0]
    if len(sizes) == len(own) and len(np.unique(sizes)) == 1:
        if (own > sizes[0]).any():
            return nothing
        return (epoch - base) * int(sizes[0])
    length = _longest(epoch, own)
    return (epoch - base) * length


def _longest(epoch: NDArray[np.int64], own: NDArray[np.int64]) -> int:
    """Steps per epoch without a printed total: the largest counter of any epoch."""
    if (own == own[0]).all() and own[0] > 0:
        return int(own[0])  # one row per epoch, with the number of its last step
    inner = np.diff(own)[np.diff(epoch) == 0]
    stride = int(np.median(inner[inner > 0])) if (inner > 0).any() else 1
    start = int(own.min())
    last = int(own.max())
    return last if start >= 1 and start == stride else last + stride
