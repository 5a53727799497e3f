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

# Which column of a log counts the steps, and a count that begins anew with every epoch.

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
"""What counts steps, the surest first."""
EPOCH_NAMES = ("epoch", "epochs", "current_epoch", "ep")
"""What counts epochs, where nothing counts steps."""


def plain(name: str) -> str:
    """A column's name as it is compared: `Global Step` is `global_step`."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def counting(names: Iterable[str]) -> tuple[str | None, Unit]:
    """The column that counts, and what it counts; (None, "row") where there is none."""
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(plain(name), name)
    for candidates, unit in ((STEP_NAMES, "step"), (EPOCH_NAMES, "epoch")):
        for candidate in candidates:
            if candidate in known:
                return known[candidate], unit  # type: ignore[return-value]
    return None, "row"


def unroll(log: Log) -> None:
    """Makes a count that begins anew with each epoch (`iter` of mmcv, `batch`) go on instead.

    Only where every fall of the count is a rise of the epoch, and there is such a fall; a run that
    was started again falls back in both.
    """
    name = next((name for name in log.table.series if plain(name) in EPOCH_NAMES), None)
    if name is None or log.unit != "step" or not len(log.table.series[name]):
        return
    steps = np.frombuffer(log.table.steps, dtype=np.int64)
    # A row that does not say its epoch is of the epoch of the row before it.
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
        "the step count begins anew with each epoch; the steps here go on counting, and an epoch's "
        "unlogged last steps are not in them"
    )


def typical_gap(table: Table, series: Series) -> int:
    """How many steps lie between two values of a column, as a rule."""
    if len(series) < 2:
        return 1
    return _gap(np.frombuffer(table.steps, dtype=np.int64)[series.where()])


def _gap(steps: NDArray[np.int64]) -> int:
    gaps = np.diff(steps)
    gaps = gaps[gaps > 0]
    return max(int(np.median(gaps)), 1) if len(gaps) else 1


# Rows that say in a word what they are of: training or held-out data, or one metric by name.

# {"split": "val", "step": 100, "loss": 2.1}          the loss of the held-out data {"step": 100,
# "name": "loss", "value": 2.1}         one number, and its name beside it

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
METRIC_NAMES = ("name", "metric", "metric_name", "tag", "key")
VALUE_NAMES = ("value", "metric_value", "val")
PREFIX = "val/"

_COUNTS = frozenset((*STEP_NAMES, *EPOCH_NAMES))


def held_out(row: Mapping[str, Any]) -> bool:
    """Whether a row says that it is of held-out data."""
    return any(says_held_out(row[name]) for name in SPLIT_NAMES if name in row)


def says_held_out(word: Any) -> bool:
    """Whether this word means held-out data."""
    return isinstance(word, str) and word.strip().lower() in HELD_OUT


def as_held_out(values: Mapping[str, float]) -> dict[str, float]:
    """The names as those of held-out data, where they do not say so themselves."""
    return {
        name
        if plain(name) in _COUNTS or not HELD_OUT.isdisjoint(_parts(name))
        else PREFIX + name: v
        for name, v in values.items()
    }


def long_form(names: Iterable[str]) -> tuple[str, str] | None:
    """The two names of a row that has a metric's name and its value."""
    known = set(names)
    metric = next((name for name in METRIC_NAMES if name in known), None)
    value = next((name for name in VALUE_NAMES if name in known), None)
    return (metric, value) if metric is not None and value is not None else None


def _parts(name: str) -> list[str]:
    return name.lower().replace("/", "_").replace("-", "_").split("_")


# Numbers as stores write them: the many spellings of what is not finite, steps that are whole.

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
"""JSON has no word for these, so every writer found its own."""

FURTHEST = 1 << 62
"""No training counts further; a larger number is no step."""

MOST_SETTINGS = 1000
"""More of them are no settings of a training."""

_NULLED = re.compile(r"loss|grad.*norm", re.IGNORECASE)


def number(value: Any) -> float | None:
    """A number that came out of JSON; None for anything else."""
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
    """A number kept as text, where the name says that it is one: `"loss": "2.31"`."""
    if len(value) > 32 or not is_metric(name):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def whole(value: Any) -> int | None:
    """A step: a whole number, also one written as 10.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < FURTHEST else None
    if isinstance(value, str):
        return int(value) if len(value) < 18 and value.isascii() and value.isdigit() else None
    if isinstance(value, float) and abs(value) < FURTHEST and value == int(value):
        return int(value)
    return None


_METRIC = re.compile(
    r"(?<![a-z])(?:loss|acc|accuracy|grad[a-z_]*norm|lr|learning_rate|perplexity|ppl|reward|nll|"
    r"mse|mae|rmse|f1|bleu|error)(?![a-z])(?!.*(?:coef|eps|type|fn|weight|scale|function)$)",
    re.IGNORECASE,
)


def is_metric(name: str) -> bool:
    """Whether a name is one that trainings log, and settings seldom have."""
    return bool(_METRIC.search(name))


def plain_settings(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are numbers, words or switches; not too many and not too long."""
    kept: dict[str, Any] = {}
    for name, value in found.items():
        short = isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= 500)
        if short and len(name) <= 200 and len(kept) < MOST_SETTINGS:
            kept[name] = value
    return kept


def may_be_nulled(name: str) -> bool:
    """Whether null in a column of this name may stand for a number that was not finite."""
    return bool(_NULLED.search(name))
