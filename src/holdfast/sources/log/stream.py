"""A log as records: what checks are fed.

Names become ours, every signal is described as honestly as the log allows, rows of one step become
one record, and where the steps run backwards a new segment begins: the run was restarted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from holdfast.core.records import EventRecord, Header, Record, StepRecord
from holdfast.core.signals import Signal
from holdfast.sources.log.condense import kept_rows
from holdfast.sources.log.log import Happening, Log
from holdfast.sources.log.names import Named, names_of
from holdfast.sources.log.table import Series, Table

RESTART = "restart"
"""The happening after which a new segment begins even if the steps go on."""


def records(log: Log) -> Iterator[Record]:
    """The stream of one log, the header first."""
    return Stream(log).records()


@dataclass
class _Row:
    row: int
    step: int
    values: dict[str, float]


class Stream:
    """Turns one log into records."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.names = names_of(log.table.series, log.names, log.facts.get("units"))
        self.header = self._header()

    def records(self) -> Iterator[Record]:
        """The header, then everything in order."""
        yield self.header
        segment, seq, before = 0, 0, -1
        waiting = sorted(self.log.happenings, key=lambda item: item.row)
        for row in self._rows():
            restarted = False
            while waiting and waiting[0].row <= row.row:
                happening = waiting.pop(0)
                restarted = restarted or happening.kind == RESTART
                seq += 1
                yield _event(happening, segment, seq, max(before, 0))
            if before >= 0 and (row.step < before or restarted):
                segment += 1
                yield replace(self.header, segment=segment, seq=seq + 1)
            before = row.step
            seq += 1
            yield StepRecord(segment=segment, seq=seq, step=max(row.step, 0), values=row.values)
        for happening in waiting:
            seq += 1
            yield _event(happening, segment, seq, max(before, 0))

    def _rows(self) -> Iterator[_Row]:
        """The rows that say anything, those of one step in a row joined."""
        table = self.log.table
        names = {raw: (item.name, item.factor) for raw, item in self.names.items()}
        current: _Row | None = None
        for row, step, values in table.rows(names, kept_rows(table, self.names)):
            if not values:
                continue
            if current is not None and current.step == step and not current.values.keys() & values:
                current.values.update(values)
                continue
            if current is not None:
                yield current
            current = _Row(row, step, values)
        if current is not None:
            yield current

    def _header(self) -> Header:
        log = self.log
        signals = {
            named.name: log.signals.get(raw) or described(log.table, log.table.series[raw])
            for raw, named in self.names.items()
            if raw in log.table.series
        }
        facts = {**log.facts, "unit": log.unit, "path": str(log.path)}
        return Header(source=log.format, signals=signals, facts=facts)


def described(table: Table, series: Series) -> Signal:
    """What is known of a number whose log says nothing about it: a value every so many steps."""
    steps = np.frombuffer(table.steps, dtype=np.int64)[series.where()] if len(series) else ()
    gaps = np.diff(steps)
    gaps = gaps[gaps > 0]
    return Signal(every=max(int(np.median(gaps)), 1) if len(gaps) else 1)


def loss_of(log: Log, names: dict[str, Named]) -> tuple[list[int], list[float]]:
    """(steps, values) of the loss, for a plot; empty where the log has none."""
    raw = next((raw for raw, named in names.items() if named.name == "loss"), None)
    if raw is None or raw not in log.table.series:
        return [], []
    series = log.table.series[raw]
    steps = np.frombuffer(log.table.steps, dtype=np.int64)[series.where()]
    return steps.tolist(), series.numbers().tolist()


def _event(happening: Happening, segment: int, seq: int, step: int) -> EventRecord:
    return EventRecord(segment, seq, step, happening.kind, dict(happening.data))
