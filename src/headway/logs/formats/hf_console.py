"""The Hugging Face Trainer's console, and all that is built on it (TRL, axolotl, LLaMA-Factory):
`{'loss': 2.27, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.1}`; since 5.0 the numbers are
strings of four digits.

The loss is the mean since the last line, with NaN and Inf left out unless that filter was turned
off; the norm is the last step's. The step is not in the line: see `_steps`.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.logs.console_rows import ConsoleRows, Dialect, describe, recognised, signal
from headway.logs.key_values import pairs
from headway.logs.log_file import Sample, console_lines, strip_prefix
from headway.logs.log_table import Log, Unit
from headway.logs.step_counters import ABSENT

FORMAT = "hf-console"
SAYS = "Hugging Face Trainer console log"
_ROW = re.compile(
    r"(?:^|(?<=[\s\]>]))\{'[\w/. -]{1,80}': '?[-+\w.]{1,40}'?, '(?=[^{]{0,8000}'epoch': )"
)
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\| ?(\d{1,15})/(\d{1,15}) \[")
_DESCRIBED = re.compile(r"[A-Za-z][^|%]{0,80}:\s{1,4}\d{1,3}%\|")
_DIALECT = Dialect(
    FORMAT,
    row=_ROW,
    marker=re.compile(r"\*{5} Running training \*{5}|Total optimization steps ?="),
)


def recognise(sample: Sample) -> float:
    found = recognised(_DIALECT, sample)
    return min(found + 0.1, 1.0) if found else 0.0  # above the engine it may run on


_ROUND = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000)
"""What people set `logging_steps` to."""


@dataclass(slots=True)
class _Bars:
    """The counts of the training's progress bar around every row."""

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


def read(path: Path) -> Log:
    rows = ConsoleRows(FORMAT, path)
    bars = _Bars()
    epochs = array("d")
    training = array("b")
    for plain in console_lines(path):
        rows.lines += 1
        line, rank = strip_prefix(plain)
        match = _ROW.search(line)
        if "%|" in line and not _DESCRIBED.search(line):
            bars.see(line[: match.start()] if match else line)
        if match is None:
            rows.tell(line)
            continue
        values = rows.values(pairs(line[match.start() :]))
        if not values or rows.other_rank(rank, values):
            continue
        rows.used += 1
        if "train_runtime" in values:
            _summary(rows, values)
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
    describe(log, rows.digits)
    _describe(log)
    return log


def _summary(rows: ConsoleRows, values: dict[str, float]) -> None:
    """The last line of a run tells how many steps there were, if nobody did before."""
    steps = values["train_runtime"] * values.get("train_steps_per_second", np.nan)
    if 0 < steps < 1e12 and values.get("epoch", 0) > 0:
        rows.facts["_steps_per_epoch"] = steps / values["epoch"]


def _steps(
    log: Log, bars: _Bars, epochs: NDArray[np.float64], training: NDArray[np.bool_]
) -> tuple[array[int], Unit]:
    """Steps from what there is: a progress bar beside the rows, or the epoch (a fraction) and the
    number of steps in one. Either is rough; rows that lie evenly are put exactly. Else rows."""
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
    """`logging_steps` apart, as the Trainer logs, where the estimates allow it."""
    if len(estimate) < 3:
        return np.rint(estimate)
    first = 1 if estimate[0] <= 1.5 and estimate[1] > 2.5 else 0  # logging_first_step
    rest = estimate[first:]
    apart = (rest[-1] - rest[0]) / (len(rest) - 1)
    interval = max(round(float(apart)), 1)
    if 2 * slack > len(rest) - 1:  # too rough to count by: take the round number beside it
        interval = min(_ROUND, key=lambda each: abs(each - apart))
    start = max(round(float(np.median(rest - interval * np.arange(len(rest)))) / interval), 1)
    even = (start + np.arange(len(rest))) * interval
    off = np.abs(even - rest)
    if (off <= max(interval / 2, 1.0, slack)).mean() < 0.9:
        return np.rint(estimate)
    log.facts.setdefault("logging_steps", interval)
    return np.concatenate([np.rint(estimate[:first]), even.astype(float)])


def _describe(log: Log) -> None:
    span = log.facts.get("logging_steps")
    signal(
        log,
        r"^loss$",
        fold="mean",
        span=span if isinstance(span, int) else None,
        nonfinite="filtered",
        scope="global",
    )
    signal(log, r"^grad_norm$", scope="global")
