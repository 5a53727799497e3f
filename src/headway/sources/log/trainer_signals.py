"""What the numbers of the Hugging Face Trainer mean, in whichever store they were kept.

Its `loss` is the mean of the steps since the last row, and a NaN or infinite loss is left out of
that mean unless the user said otherwise (`logging_nan_inf_filter`); `grad_norm` and `learning_rate`
are those of the row's own step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

from headway.core.signals import Signal
from headway.sources.log.log import Log
from headway.sources.log.steps import typical_gap
from headway.sources.log.values import whole

OWN_STEP = ("grad_norm", "learning_rate", "lr", "epoch", "num_tokens", "num_input_tokens_seen")
"""Values of the row's step itself; all others of training are means since the last row."""
APART = ("eval", "test", "total_", "train_", "profiling/", "global_step")
"""What begins so is no running value of training."""
SUMMARY = (
    "train_loss",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "total_flos",
)
"""Logged once, at the end: means of the whole run, no points of a curve."""
FILTER = "logging_nan_inf_filter"


def is_trainer(log: Log) -> bool:
    """Whether the settings kept beside the numbers are the Trainer's."""
    return FILTER in log.facts and "logging_steps" in log.facts


def describe_trainer(log: Log, prefix: str = "") -> None:
    """Describes the columns; some stores put `train/` before their names."""
    table = log.table
    loss = table.series.get(f"{prefix}loss")
    told = whole(log.facts.get("logging_steps"))
    span = max(told, 1) if told else 1
    # The setting may be a default that an epoch-wise strategy never used: the rows know better.
    if loss is not None and len(loss) > 2:
        span = typical_gap(table, loss)
    for name, series in table.series.items():
        own = name.removeprefix(prefix)
        if own in SUMMARY and len(series) == 1:
            log.facts.setdefault(own, series.values[0])
            log.names[name] = ""
        if not name.startswith(prefix) or own.startswith(APART):
            continue
        if own in OWN_STEP:
            log.signals[name] = Signal(every=typical_gap(table, series))
        else:
            log.signals[name] = Signal(span=span, fold="mean", every=span)
    if loss is not None:
        kept = not all(math.isfinite(value) for value in loss.values)
        kept = kept or log.facts.get(FILTER) in (False, "False")
        log.signals[f"{prefix}loss"] = Signal(
            span=span,
            fold="mean",
            every=span,
            nonfinite="kept" if kept else "filtered",
            digits=_digits(loss.values),
        )
    log.facts.setdefault("logging_steps", span)


def count_trainer_steps(log: Log, name: str) -> None:
    """Some stores count calls; the Trainer says beside them which step it is."""
    counted = log.table.series.get(name)
    if counted is None or len(counted) != len(log.table):
        return
    steps = [whole(value) for value in counted.values]
    if None not in steps:
        log.table.steps = array("q", [step for step in steps if step is not None])


def _digits(losses: Iterable[float]) -> int | None:
    """Older versions round the loss to four decimals; how many digits that leaves."""
    finite = sorted(abs(loss) for loss in losses if math.isfinite(loss) and loss)
    if not finite or any(round(loss, 4) != loss for loss in finite):
        return None
    middle = finite[len(finite) // 2]
    return max(4 + math.floor(math.log10(middle)) + 1, 1)
