"""`trainer_state.json` of the Hugging Face Trainer.

What it logs as `loss` is the mean of the steps since the last row, and a NaN or infinite loss is
left out of that mean unless the user said otherwise (`logging_nan_inf_filter`); `grad_norm` and
`learning_rate` are those of the row's own step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.core.signals import Signal
from holdfast.errors import UnreadableInput
from holdfast.sources.log.log import Log
from holdfast.sources.log.sample import Sample
from holdfast.sources.log.steps import typical_gap
from holdfast.sources.log.table import Table
from holdfast.sources.log.values import number, whole
from holdfast.sources.log.whole_json import whole_json

FORMAT = "hf-trainer"
SAYS = "Hugging Face trainer_state.json"

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_SUMMARY = "train_runtime"
"""The last row of a run that ended: means of the whole of it, no point of a curve."""
_OWN_STEP = ("grad_norm", "learning_rate", "lr", "epoch", "num_tokens", "num_input_tokens_seen")
"""Values of the row's step itself; all others are means since the last row."""
_FACTS = (
    "max_steps",
    "num_train_epochs",
    "global_step",
    "epoch",
    "logging_steps",
    "save_steps",
    "eval_steps",
    "train_batch_size",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)


def recognise(sample: Sample) -> float:
    """Sure of an object that has a `log_history`."""
    text = sample.text.lstrip("\ufeff \t\r\n")
    return 1.0 if text.startswith("{") and _HISTORY.search(text) else 0.0


def read(path: Path) -> Log:
    """The whole of it."""
    state = whole_json(path, SAYS)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise UnreadableInput(f"{path} is no {SAYS}: it has no list `log_history`")
    log = Log(FORMAT, path, Table(), facts=_facts(state, _FACTS))
    add_rows(log, history)
    describe(log)
    return log


def add_rows(log: Log, history: Iterable[Any]) -> None:
    """Rows as the Trainer logs them, wherever they were found."""
    for row in history:
        log.lines += 1
        if not isinstance(row, dict):
            continue
        if _SUMMARY in row:
            log.facts.update(_facts(row, [key for key in row if key not in ("step", "epoch")]))
            log.used += 1
            continue
        step = whole(row.get("step"))
        values = {}
        for name, value in row.items():
            found = number(value) if name != "step" else None
            if found is not None:
                values[name] = found
        if step is not None and values.keys() - {"epoch"}:
            log.table.add(step, values)
            log.used += 1


def describe(log: Log) -> None:
    """What the numbers mean."""
    table = log.table
    loss = table.series.get("loss")
    told = whole(log.facts.get("logging_steps"))
    span = max(told, 1) if told else 1
    # The setting may be a default that an epoch-wise strategy never used: the rows know better.
    if loss is not None and len(loss) > 2:
        span = typical_gap(table, loss)
    for name, series in table.series.items():
        if name.startswith(("eval_", "test_")):
            continue
        if name in _OWN_STEP:
            log.signals[name] = Signal(every=typical_gap(table, series))
        elif name != "loss":
            log.signals[name] = Signal(span=span, fold="mean", every=span)
    if loss is not None:
        kept = not all(math.isfinite(value) for value in loss.values)
        log.signals["loss"] = Signal(
            span=span,
            fold="mean",
            every=span,
            nonfinite="kept" if kept else "filtered",
            digits=_digits(loss.values),
        )
    log.facts.setdefault("logging_steps", span)


def _digits(losses: Iterable[float]) -> int | None:
    """Older versions round the loss to four decimals; how many digits that leaves."""
    finite = sorted(abs(loss) for loss in losses if math.isfinite(loss) and loss)
    if not finite or any(round(loss, 4) != loss for loss in finite):
        return None
    middle = finite[len(finite) // 2]
    return max(4 + math.floor(math.log10(middle)) + 1, 1)


def _facts(state: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    found = {name: state[name] for name in names if isinstance(state.get(name), (int, float, str))}
    return {name: value for name, value in found.items() if len(str(value)) <= 500}
