"""Which column of a log counts the steps, and a count that begins anew with every epoch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headway.sources.log.log import Log, Unit
from headway.sources.log.table import Series, Table

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
