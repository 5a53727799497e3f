"""Joins several logs of one run into one.

The most exact log is the base and is not changed. The others add signals that it does not have, and
steps after its end: `trainer_state.json` is written with a checkpoint, and a NaN thirty steps later
is only in the console.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headway.core.signals import Signal
from headway.logs.log_names import map_names
from headway.logs.log_table import Log, LogEvent, Table
from headway.logs.signal_inference import described, unit_of

_STORES = ("tensorboard", "wandb", "mlflow", "trackio", "jsonl", "json", "llama-factory")
EXACT, ROUNDED, SMOOTHED = 1e-5, 5e-3, 0.2
"""Relative differences between two logs of the same number: stores, consoles, moving means."""
MIN_COMMON = 3
"""Common steps that two logs need to be compared by their numbers."""

Rows = list[tuple[int, dict[str, float]]]


def exactness(log: Log) -> int:
    """0 for the most exact: trainer state, then stores, tables, consoles."""
    if log.format == "hf-trainer":
        return 0
    if log.format in _STORES:
        return 1
    return 2 if "csv" in log.format else 3


def join_logs(logs: Sequence[Log]) -> Log:
    """Joins several logs of one run; a single log is returned unchanged."""
    ordered = sorted(logs, key=lambda log: (_unit(log), exactness(log), -len(log.table)))
    base = ordered[0]
    # Epochs and rows are not steps: a log in another unit than the base cannot be joined.
    others = [log for log in ordered[1:] if log.unit == base.unit != "row"]
    others += [moved for log in ordered[1:] if (moved := _aligned(log, base)) is not None]
    if not others:
        return base
    joined = _Joined(base)
    for log in others:
        joined.add(log)
    return joined.log()


def same_run(one: Log, other: Log) -> bool | None:
    """Whether two logs are of one run, by their numbers; None if the numbers do not decide it.

    Two logs of one format must be equal: runs with the same seed are alike until one breaks.
    Of two formats one may round or smooth, so only a loss at another level shows another run.
    """
    if one.unit != other.unit:
        return None
    first, second = _curve(one), _curve(other)
    common = sorted(first.keys() & second.keys())
    if len(common) < MIN_COMMON:
        return None
    if one.format == other.format:
        return all(_alike(first[step], second[step], EXACT) for step in common)
    if _share(first, second, common, ROUNDED) >= 0.8:
        return True
    return None if _share(first, second, common, SMOOTHED) >= 0.5 else False


def _share(
    first: dict[int, float], second: dict[int, float], common: Sequence[int], near: float
) -> float:
    alike = sum(_alike(first[step], second[step], near) for step in common)
    return alike / len(common)


def _unit(log: Log) -> int:
    return ("step", "epoch", "row").index(log.unit)


def _alike(one: float, other: float, near: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return one == other or (math.isnan(one) and math.isnan(other))
    return abs(one - other) <= near * max(abs(one), abs(other), 1e-12)


def _curve(log: Log) -> dict[int, float]:
    """Step → loss; the gradient norm or learning rate if there is no loss."""
    rows = _rows(log)
    for name in ("loss", "grad_norm", "lr"):
        found = {step: values[name] for step, values in rows if name in values}
        if len(found) >= MIN_COMMON:
            return found
    return {}


def _names(log: Log) -> dict[str, tuple[str, float]]:
    named = map_names(log.table.series, log.names, log.facts.get("units"))
    return {
        raw: (
            item.name,
            unit_of(log.table.series[raw], item.factor)
            if item.name.endswith("_bytes")
            else item.factor,
        )
        for raw, item in named.items()
        if raw in log.table.series
    }


def _rows(log: Log) -> Rows:
    return [(step, values) for _, step, values in log.table.rows(_names(log)) if values]


def _signals(log: Log) -> dict[str, Signal]:
    return {
        name: log.signals.get(raw) or described(log.table, log.table.series[raw])
        for raw, (name, _) in _names(log).items()
    }


def _aligned(log: Log, base: Log) -> Log | None:
    """A log without steps gets those of a base that has the same losses row by row."""
    if log.unit != "row" or base.unit != "step":
        return None
    theirs = [(step, values["loss"]) for step, values in _rows(base) if "loss" in values]
    own = [(row, values["loss"]) for row, values in _rows(log) if "loss" in values]
    both = min(len(theirs), len(own))
    if both < MIN_COMMON:
        return None
    if sum(_alike(theirs[at][1], own[at][1], ROUNDED) for at in range(both)) < 0.9 * both:
        return None
    pace = max(theirs[-1][0] - theirs[-2][0], 1)
    step_of = {
        row: theirs[at][0] if at < len(theirs) else theirs[-1][0] + pace * (at - len(theirs) + 1)
        for at, (row, _) in enumerate(own)
    }
    table = Table()
    before = 0
    for row, values in _rows(log):
        before = step_of.get(row, before)
        table.add(before, values)
    names = {name: name for name in table.series}
    return Log(log.format, log.path, table, "step", {}, names, log.lines, log.used)


class _Joined:
    """The base log and what others add to it."""

    def __init__(self, base: Log) -> None:
        self.base = base
        self.rows = _rows(base)
        self.signals = _signals(base)
        self.events = [(self._place(item, base), item) for item in base.events]
        self.facts: dict[str, Any] = dict(base.facts)
        self.notes = list(base.notes)
        self.forward = all(a[0] <= b[0] for a, b in pairwise(self.rows))
        self.continued = False
        """Whether a log that was added begins after the end of the base."""

    def add(self, log: Log) -> None:
        """Adds another log."""
        ends = self._ends()
        last = self.rows[-1][0] if self.rows else -1
        at = {step: place for place, (step, _) in enumerate(self.rows)}
        tail: Rows = []
        between: dict[int, dict[str, float]] = {}
        fresh = set()
        for step, values in _rows(log):
            for name, value in values.items():
                if name in ends:
                    if step <= ends[name]:
                        continue  # the more exact log has it
                else:
                    fresh.add(name)
                if step > last:
                    if not tail or tail[-1][0] != step or name in tail[-1][1]:
                        tail.append((step, {}))
                    tail[-1][1][name] = value
                elif step in at:
                    self.rows[at[step]][1].setdefault(name, value)
                elif self.forward:
                    between.setdefault(step, {})[name] = value
        if between:
            self.rows = sorted([*self.rows, *between.items()], key=lambda row: row[0])
        self.rows += tail
        self.continued = self.continued or log.table.steps[0] > last
        described_here = _signals(log)
        for name in {*fresh, *(key for _, values in tail for key in values)}:
            self.signals.setdefault(name, described_here.get(name) or Signal())
        # Events come from the base if it has any: counted twice they would be wrong. An exit status
        # alone has no cause; the console may print it.
        if all("aside" in item.data for item in self.base.events):
            self.events += [(self._place(item, log), item) for item in log.events]
        for key, value in log.facts.items():
            self.facts.setdefault(key, value)
        self.notes += log.notes
        self.forward = self.forward and all(a[0] <= b[0] for a, b in pairwise(tail))

    def _ends(self) -> dict[str, int]:
        """The last step of each signal."""
        found: dict[str, int] = {}
        for step, values in self.rows:
            for name in values:
                found[name] = step
        return found

    @staticmethod
    def _place(item: LogEvent, log: Log) -> int:
        """The step before an event."""
        row = min(item.row, len(log.table.steps)) - 1
        return log.table.steps[row] if row >= 0 else -1

    def _row(self, steps: list[int], step: int, item: LogEvent) -> int:
        """The rows before an event. The end of the base stays the end, although the console may
        count steps from 1 or print one more."""
        if item.row >= len(self.base.table) and not self.continued and item in self.base.events:
            return len(steps)
        return bisect_right(steps, step) if self.forward else min(item.row, len(steps))

    def log(self) -> Log:
        """The joined log."""
        table = Table()
        for step, values in self.rows:
            table.add(step, values)
        steps = [step for step, _ in self.rows]
        events = [
            LogEvent(self._row(steps, step, item), item.kind, item.data)
            for step, item in self.events
        ]
        self.facts.pop("units", None)  # columns have our units now
        return Log(
            self.base.format,
            self.base.path,
            table,
            self.base.unit,
            self.signals,
            {name: name for name in table.series},
            self.base.lines,
            self.base.used,
            events,
            self.facts,
            list(dict.fromkeys(self.notes)),
        )
