"""Fields of a log row: numbers in their various spellings, step and epoch columns, train and
validation splits.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.logs.log_table import Log, Series, Table, Unit

# Step and epoch columns.

STEP_NAMES = (
    "global_step",
    "trainer/global_step",
    "optimizer_step",
    "train_step",
    "training_step",
    "num_updates",
    "current_steps",
    "step",
    "steps",
    "_step",
    "iteration",
    "iterations",
    "iter",
    "iters",
    "n_iter",
    "it",
    "update",
    "updates",
    "num_batches",
    "batch",
    "batch_idx",
)
"""Names of step columns, the best first."""
EPOCH_NAMES = ("epoch", "epochs", "current_epoch", "ep")
"""Names of epoch columns, used if there is no step column."""


def plain(name: str) -> str:
    """A name in the form used for comparison: `Global Step` is `global_step`."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def counting(names: Iterable[str]) -> tuple[str | None, Unit]:
    """The step or epoch column and what it counts; (None, "row") if there is none."""
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(plain(name), name)
    for candidates, unit in ((STEP_NAMES, "step"), (EPOCH_NAMES, "epoch")):
        for candidate in candidates:
            if candidate in known:
                return known[candidate], unit  # type: ignore[return-value]
    return None, "row"


def unroll(log: Log) -> None:
    """Makes a counter that starts over in each epoch (`iter` of mmcv, `batch`) continuous.

    Only if each decrease of the counter is an increase of the epoch: in a restart, both decrease.
    """
    name = next((name for name in log.table.series if plain(name) in EPOCH_NAMES), None)
    if name is None or log.unit != "step" or not len(log.table.series[name]):
        return
    steps = np.frombuffer(log.table.steps, dtype=np.int64)
    # A row without an epoch has that of the row before it.
    known = log.table.series[name]
    before = np.searchsorted(known.where(), np.arange(len(steps)), side="right") - 1
    epochs = known.numbers()[np.maximum(before, 0)]
    if len(steps) < 3 or not np.isfinite(epochs).all():
        return
    falls, rises = np.diff(steps) < 0, np.diff(epochs) >= 1
    if falls.sum() < 1 or not (falls == rises).all():
        return
    ends = steps[:-1] + np.where(steps[1:] == 0, _gap(steps), 0)
    before = np.concatenate(([0], np.cumsum(np.where(falls, ends, 0))))
    log.table.steps = array("q", (steps + before).tolist())
    log.notes.append(
        "the step counter restarts in each epoch; steps are numbered continuously, except for "
        "those after the last logged step of an epoch"
    )


def typical_gap(table: Table, series: Series) -> int:
    """The usual number of steps between two values of a column."""
    if len(series) < 2:
        return 1
    return _gap(np.frombuffer(table.steps, dtype=np.int64)[series.where()])


def _gap(steps: NDArray[np.int64]) -> int:
    gaps = np.diff(steps)
    gaps = gaps[gaps > 0]
    return max(int(np.median(gaps)), 1) if len(gaps) else 1


# Rows that name the data they are about, or their metric:
#
#     {"split": "val", "step": 100, "loss": 2.1}
#     {"step": 100, "name": "loss", "value": 2.1}

SPLIT_NAMES = (
    "split",
    "mode",
    "phase",
    "stage",
    "type",
    "kind",
    "set",
    "subset",
    "event",
    "prefix",
)
HELD_OUT = frozenset(
    ("val", "valid", "validation", "eval", "evaluation", "evaluate", "test", "testing", "dev")
)
METRIC_NAMES = ("name", "metric", "metric_name", "metric.name", "tag", "key", "variable")
VALUE_NAMES = ("value", "metric_value", "val")
PREFIX = "val/"

_COUNTS = frozenset((*STEP_NAMES, *EPOCH_NAMES))


def held_out(row: Mapping[str, Any]) -> bool:
    """Whether a row is about held-out data."""
    return any(says_held_out(row[name]) for name in SPLIT_NAMES if name in row)


def says_held_out(word: Any) -> bool:
    """Whether this word means held-out data."""
    return isinstance(word, str) and word.strip().lower() in HELD_OUT


def as_held_out(values: Mapping[str, float]) -> dict[str, float]:
    """The values under names of held-out data, where the name does not say so itself."""
    return {
        name
        if plain(name) in _COUNTS or not HELD_OUT.isdisjoint(_parts(name))
        else PREFIX + name: v
        for name, v in values.items()
    }


def long_form(names: Iterable[str]) -> tuple[str, str] | None:
    """The two keys of a row that has the name of a metric and its value."""
    known = set(names)
    metric = next((name for name in METRIC_NAMES if name in known), None)
    value = next((name for name in VALUE_NAMES if name in known), None)
    return (metric, value) if metric is not None and value is not None else None


def _parts(name: str) -> list[str]:
    return name.lower().replace("/", "_").replace("-", "_").split("_")


# Numbers as stores write them: spellings of non-finite values, and steps.

SPELLED = {
    "nan": math.nan,
    "-nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}
"""JSON has no word for these; writers use different ones."""

MAX_STEP = 1 << 62
"""A larger number is not a step."""

MAX_SETTINGS = 1000

_NULLED = re.compile(r"loss|grad.*norm", re.IGNORECASE)


def number(value: Any) -> float | None:
    """A JSON value as a number; None for anything else."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and len(value) <= 9:
        return SPELLED.get(value.strip().lower())
    return None


def spelled(name: str, value: str) -> float | None:
    """Text as a number, if the name is that of a metric: `"loss": "2.31"`."""
    if len(value) > 32 or not is_metric(name):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def whole(value: Any) -> int | None:
    """A value as a step: a whole number, also written as 10.0; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < MAX_STEP else None
    if isinstance(value, str):
        return int(value) if len(value) < 18 and value.isascii() and value.isdigit() else None
    if isinstance(value, float) and abs(value) < MAX_STEP and value == int(value):
        return int(value)
    return None


_METRIC = re.compile(
    r"(?<![a-z])(?:loss|acc|accuracy|grad[a-z_]*norm|lr|learning_rate|perplexity|ppl|reward|nll|"
    r"mse|mae|rmse|f1|bleu|error)(?![a-z])(?!.*(?:coef|eps|type|fn|weight|scale|function)$)",
    re.IGNORECASE,
)


def is_metric(name: str) -> bool:
    """Whether it is the name of a metric, and hardly ever of a setting."""
    return bool(_METRIC.search(name))


def plain_settings(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are numbers, short strings or switches; at most `MAX_SETTINGS`."""
    kept: dict[str, Any] = {}
    for name, value in found.items():
        short = isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= 500)
        if short and len(name) <= 200 and len(kept) < MAX_SETTINGS:
            kept[name] = value
    return kept


def may_be_nulled(name: str) -> bool:
    """Whether null in a column of this name may mean a non-finite number."""
    return bool(_NULLED.search(name))
