"""Hugging Face Trainer: `trainer_state.json`, LLaMA-Factory's `trainer_log.jsonl`, the console, and
what the Trainer's numbers mean.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.signals import Signal
from headway.errors import UnreadableInput
from headway.logs.console_rows import (
    Columns,
    ConsoleRows,
    Dialect,
    describe_columns,
    describe_digits,
    line_share,
)
from headway.logs.formats.json_logs import finish, first_rows
from headway.logs.json_rows import BAD_JSON, Elements, JsonRows, whole_text
from headway.logs.key_values import pairs
from headway.logs.log_file import Sample, console_lines, line_blocks, strip_prefix
from headway.logs.log_table import Log, Table, Unit
from headway.logs.readers import LogReader
from headway.logs.row_fields import number, plain_settings, typical_gap, whole
from headway.logs.step_counters import ABSENT

# What the numbers mean, in any store. `loss` is the mean of the steps since the last row, without
# NaN and Inf unless `logging_nan_inf_filter` is off; `grad_norm` and `learning_rate` are of the
# row's own step.

OWN_STEP = ("grad_norm", "learning_rate", "lr", "epoch", "num_tokens", "num_input_tokens_seen")
"""Values of the row's own step; all other training values are means since the last row."""
NOT_TRAINING = ("eval", "test", "total_", "train_", "profiling/", "global_step")
"""Prefixes of names that are not values of training steps."""
SUMMARY = (
    "train_loss",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "total_flos",
)
"""Logged once, at the end: means of the whole run."""
FILTER = "logging_nan_inf_filter"


def is_trainer(log: Log) -> bool:
    """Whether the settings of the log are those of the Trainer."""
    return FILTER in log.facts and "logging_steps" in log.facts


def describe_trainer(log: Log, prefix: str = "") -> None:
    """Describes the columns; `prefix` is what a store puts before their names."""
    table = log.table
    loss = table.series.get(f"{prefix}loss")
    steps = whole(log.facts.get("logging_steps"))
    span = max(steps, 1) if steps else 1
    # The setting may be an unused default, with logging per epoch: the rows are more reliable.
    if loss is not None and len(loss) > 2:
        span = typical_gap(table, loss)
    for name, series in table.series.items():
        own = name.removeprefix(prefix)
        if own in SUMMARY and len(series) == 1:
            log.facts.setdefault(own, series.values[0])
            log.names[name] = ""
        if not name.startswith(prefix) or own.startswith(NOT_TRAINING):
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
    """Takes the steps from a column: some stores count calls instead of steps."""
    counted = log.table.series.get(name)
    if counted is None or len(counted) != len(log.table):
        return
    steps = [whole(value) for value in counted.values]
    if None not in steps:
        log.table.steps = array("q", [step for step in steps if step is not None])


def _digits(losses: Iterable[float]) -> int | None:
    """Significant digits of losses that older versions round to four decimals."""
    finite = sorted(abs(loss) for loss in losses if math.isfinite(loss) and loss)
    if not finite or any(round(loss, 4) != loss for loss in finite):
        return None
    middle = finite[len(finite) // 2]
    return max(4 + math.floor(math.log10(middle)) + 1, 1)


# `trainer_state.json`, written with every checkpoint.

HF_TRAINER = "hf-trainer"
HF_TRAINER_LABEL = "Hugging Face trainer_state.json"

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_SUMMARY = "train_runtime"
"""Key in the last row of a finished run, which has means of the whole run."""
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
    """Certain of an object with a `log_history`."""
    text = sample.text.lstrip("\ufeff \t\r\n")
    return 1.0 if text.startswith("{") and _HISTORY.search(text) else 0.0


def read_hf_trainer(path: Path) -> Log:
    """Reads the whole file."""
    text = whole_text(path, HF_TRAINER_LABEL)
    begin = _HISTORY.search(text)
    log = Log(HF_TRAINER, path, Table())
    rows = Elements(text, begin.end() if begin else len(text))
    try:
        if begin:
            add_rows(log, rows)
        state = json.loads(text[: begin.end()] + text[rows.end :] if begin else text)
    except BAD_JSON as error:
        raise UnreadableInput(f"{path} is not a complete {HF_TRAINER_LABEL}: {error}") from error
    if not isinstance(state, dict) or state.get("log_history") != []:
        raise UnreadableInput(f"{path} is not a {HF_TRAINER_LABEL}: it has no list `log_history`")
    log.facts = {**_facts(state, _FACTS), **log.facts}
    describe_trainer(log)
    return log


def add_rows(log: Log, history: Iterable[Any]) -> None:
    """Adds rows in the form of the Trainer."""
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
    """Certain of lines with `current_steps` and `total_steps`."""
    lines, rows = first_rows(sample)
    own = [row for row in rows if "current_steps" in row and "total_steps" in row]
    return len(own) / len(lines) if lines else 0.0


def read_llama_factory(path: Path) -> Log:
    """Reads the whole file."""
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


# The console, also of what is built on the Trainer (TRL, axolotl, LLaMA-Factory):
# `{'loss': 2.27, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.1}`. Since 5.0 the numbers
# are strings of four digits. The dialect is a row of `console_dialects.py`.

CONSOLE_ROW = re.compile(
    r"(?:^|(?<=[\s\]>]))\{'[\w/. -]{1,80}': '?[-+\w.]{1,40}'?, '(?=[^{]{0,8000}'epoch': )"
)
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\| ?(\d{1,15})/(\d{1,15}) \[")
_DESCRIBED = re.compile(r"[A-Za-z][^|%]{0,80}:\s{1,4}\d{1,3}%\|")
_ROUND = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000)
"""Usual values of `logging_steps`."""


def recognise_hf_console(dialect: Dialect, sample: Sample) -> float:
    """More certain than the dialect of the engine that the Trainer may run on."""
    found = line_share(dialect, sample)
    return min(found + 0.1, 1.0) if found else 0.0


@dataclass(slots=True)
class _Bars:
    """The counts that the training's progress bar shows before and after every row."""

    total: int = ABSENT
    last: tuple[int, int] = (ABSENT, ABSENT)
    before: array[int] = field(default_factory=lambda: array("q"))
    after: array[int] = field(default_factory=lambda: array("q"))

    def see(self, line: str) -> None:
        for found in _BAR.finditer(line):
            self.last = (int(found[1]), int(found[2]))
            if self.total in (ABSENT, self.last[1]) and self.after and self.after[-1] == ABSENT:
                self.after[-1] = self.last[0]

    def row(self, training: bool) -> None:
        if training and self.total == ABSENT and self.last[1] > 0:
            self.total = self.last[1]
        known = self.last[1] == self.total != ABSENT
        self.before.append(self.last[0] if known else ABSENT)
        self.after.append(ABSENT)


def read_hf_console(dialect: Dialect, path: Path) -> Log:
    """Reads the whole log."""
    rows = ConsoleRows(dialect.format, path)
    bars = _Bars()
    epochs = array("d")
    training = array("b")
    for plain in console_lines(path):
        rows.lines += 1
        line, rank = strip_prefix(plain)
        match = CONSOLE_ROW.search(line)
        if "%|" in line and not _DESCRIBED.search(line):
            bars.see(line[: match.start()] if match else line)
        if match is None:
            rows.scan(line)
            continue
        values = rows.values(pairs(line[match.start() :]))
        if not values or rows.other_rank(rank, values):
            continue
        rows.used += 1
        if "train_runtime" in values:
            _learn_steps_per_epoch(rows, values)
            continue
        total = rows.facts.get("total_steps")
        if isinstance(total, int) and bars.total == ABSENT:
            bars.total = total
        own = not any(name.startswith(("eval_", "test_")) for name in values)
        bars.row(own)
        epochs.append(values.get("epoch", np.nan))
        training.append(own)
        rows.add(values, ABSENT, ABSENT, ABSENT)
    log = rows.log()
    log.table.steps, log.unit = _steps(log, bars, np.array(epochs), np.array(training, dtype=bool))
    describe_digits(log, rows.digits)
    _describe_console(log)
    return log


def _learn_steps_per_epoch(rows: ConsoleRows, values: dict[str, float]) -> None:
    """Takes the steps per epoch from the last line of a run."""
    steps = values["train_runtime"] * values.get("train_steps_per_second", np.nan)
    if 0 < steps < 1e12 and values.get("epoch", 0) > 0:
        rows.facts["_steps_per_epoch"] = steps / values["epoch"]


def _steps(
    log: Log, bars: _Bars, epochs: NDArray[np.float64], training: NDArray[np.bool_]
) -> tuple[array[int], Unit]:
    """The step of each row, which the line does not have: from the progress bar beside the rows, or
    from the epoch (a fraction) and the steps per epoch. Both are estimates; evenly spaced rows get
    exact steps. Without either, rows are counted."""
    estimate = np.array(bars.after, dtype=float)
    before = np.array(bars.before, dtype=float)
    estimate = np.where(estimate < before, before, estimate)
    slack = 0.0
    rough = log.facts.pop("_steps_per_epoch", None)
    if (estimate < 0).mean() > 0.2 if len(estimate) else True:
        per_epoch = _per_epoch(log.facts) or rough
        estimate = epochs * per_epoch if per_epoch else np.full(len(epochs), np.nan)
        slack = 0.006 * float(per_epoch or 0.0)  # the epoch has two digits after the point
    known = np.isfinite(estimate) & (estimate >= 0) & (estimate < 1e12)
    if not known.any() or not (known & training).any():
        return array("q", range(1, len(epochs) + 1)), "row"
    own = np.flatnonzero(training & known)
    placed = estimate.copy()
    placed[own] = _even(estimate[own], log, slack)
    steps = np.zeros(len(placed), dtype=np.int64)
    last = 0
    for row, step in enumerate(placed):
        if known[row] and (training[row] or step >= last):
            last = round(float(step))
        steps[row] = last
    return array("q", steps.tolist()), "step"


def _per_epoch(facts: dict[str, object]) -> float | None:
    total, epochs = facts.get("total_steps"), facts.get("num_epochs")
    if isinstance(total, int) and isinstance(epochs, int) and total > 0 and epochs > 0:
        return total / epochs
    return None


def _even(estimate: NDArray[np.float64], log: Log, slack: float) -> NDArray[np.float64]:
    """Rounds the estimates to multiples of `logging_steps`, if they are close enough to it."""
    if len(estimate) < 3:
        return np.rint(estimate)
    first = 1 if estimate[0] <= 1.5 and estimate[1] > 2.5 else 0  # logging_first_step
    rest = estimate[first:]
    apart = (rest[-1] - rest[0]) / (len(rest) - 1)
    interval = max(round(float(apart)), 1)
    if 2 * slack > len(rest) - 1:  # coarser than the interval: take the nearest usual value
        interval = min(_ROUND, key=lambda each: abs(each - apart))
    start = max(round(float(np.median(rest - interval * np.arange(len(rest)))) / interval), 1)
    even = (start + np.arange(len(rest))) * interval
    off = np.abs(even - rest)
    if (off <= max(interval / 2, 1.0, slack)).mean() < 0.9:
        return np.rint(estimate)
    log.facts.setdefault("logging_steps", interval)
    return np.concatenate([np.rint(estimate[:first]), even.astype(float)])


def _describe_console(log: Log) -> None:
    steps = log.facts.get("logging_steps")
    span = steps if isinstance(steps, int) else None
    loss = Columns(r"^loss$", fold="mean", span=span, nonfinite="filtered", scope="global")
    describe_columns(log, loss)
    describe_columns(log, Columns(r"^grad_norm$", scope="global"))


READERS = (
    LogReader(HF_TRAINER, HF_TRAINER_LABEL, recognise_hf_trainer, read_hf_trainer),
    LogReader(LLAMA_FACTORY, LLAMA_FACTORY_LABEL, recognise_llama_factory, read_llama_factory),
)
