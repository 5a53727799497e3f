"""Hugging Face Trainer: `trainer_state.json`, LLaMA-Factory's `trainer_log.jsonl`, and what the
Trainer's numbers mean.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.core.signals import Signal
from headway.errors import UnreadableInput
from headway.logs.formats.json_logs import finish, first_rows
from headway.logs.json_rows import BAD_JSON, Elements, JsonRows, whole_text
from headway.logs.log_file import Sample, line_blocks
from headway.logs.log_table import Log, Table
from headway.logs.readers import LogReader
from headway.logs.row_fields import number, plain_settings, typical_gap, whole

# What the numbers of the Hugging Face Trainer mean, in whichever store they were kept.

# Its `loss` is the mean of the steps since the last row, and a NaN or infinite loss is left out of
# that mean unless the user said otherwise (`logging_nan_inf_filter`); `grad_norm` and
# `learning_rate` are those of the row's own step.

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


# `trainer_state.json` of the Hugging Face Trainer.

# It is written with every checkpoint; what its numbers mean is told in `log/trainer_signals.py`.

HF_TRAINER = "hf-trainer"
HF_TRAINER_LABEL = "Hugging Face trainer_state.json"

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_SUMMARY = "train_runtime"
"""The last row of a run that ended: means of the whole of it, no point of a curve."""
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


def recognise_hf_trainer(sample: Sample) -> float:
    """Sure of an object that has a `log_history`."""
    text = sample.text.lstrip("\ufeff \t\r\n")
    return 1.0 if text.startswith("{") and _HISTORY.search(text) else 0.0


def read_hf_trainer(path: Path) -> Log:
    """The whole of it."""
    text = whole_text(path, HF_TRAINER_LABEL)
    begin = _HISTORY.search(text)
    log = Log(HF_TRAINER, path, Table())
    rows = Elements(text, begin.end() if begin else len(text))
    try:
        if begin:
            add_rows(log, rows)
        state = json.loads(text[: begin.end()] + text[rows.end :] if begin else text)
    except BAD_JSON as error:
        raise UnreadableInput(f"{path} is no whole {HF_TRAINER_LABEL}: {error}") from error
    if not isinstance(state, dict) or state.get("log_history") != []:
        raise UnreadableInput(f"{path} is no {HF_TRAINER_LABEL}: it has no list `log_history`")
    log.facts = {**_facts(state, _FACTS), **log.facts}
    describe_trainer(log)
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


def _facts(state: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return plain_settings({name: state[name] for name in names if name in state})


# `trainer_log.jsonl` of LLaMA-Factory: the Trainer's own rows, without the gradient norm.

LLAMA_FACTORY = "llama-factory"
LLAMA_FACTORY_LABEL = "LLaMA-Factory trainer_log.jsonl"

_NO_SIGNAL = ("percentage", "throughput", "epoch")


def recognise_llama_factory(sample: Sample) -> float:
    """Sure of lines that have both `current_steps` and `total_steps`."""
    lines, rows = first_rows(sample)
    own = [row for row in rows if "current_steps" in row and "total_steps" in row]
    return len(own) / len(lines) if lines else 0.0


def read_llama_factory(path: Path) -> Log:
    """The whole of it."""
    log = Log(LLAMA_FACTORY, path, Table())
    rows = JsonRows(log)
    for lines in line_blocks(path):
        rows.add_lines(lines)
    rows.finish()
    finish(log)
    total = log.table.series.get("total_steps")
    if total is not None and total.values[-1] == total.values[-1]:
        log.facts["max_steps"] = int(total.values[-1]) if abs(total.values[-1]) < 1e18 else 0
    describe_trainer(log)
    for name in _NO_SIGNAL:
        log.signals.pop(name, None)
    return log


READERS = (
    LogReader(HF_TRAINER, HF_TRAINER_LABEL, recognise_hf_trainer, read_hf_trainer),
    LogReader(LLAMA_FACTORY, LLAMA_FACTORY_LABEL, recognise_llama_factory, read_llama_factory),
)
