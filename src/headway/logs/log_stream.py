"""Turns a log into the stream of records that the checks receive.

Names become ours, every signal is described as honestly as the log allows, rows of one step become
one record, and where the steps run backwards a new segment begins: the run was restarted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from headway.core.records import EventRecord, Header, Record, StepRecord
from headway.core.signals import Signal
from headway.logs.log_names import Named, map_names
from headway.logs.log_table import Log, LogEvent
from headway.logs.row_selection import SUMMED, select_rows, summed
from headway.logs.signal_inference import Clipping, find_loss_parts, honest, unit_of

RESTART = "restart"
"""The event after which a new segment begins even if the steps go on."""
SKIP = "scaler-skip"
"""The event that tells of one optimizer step left out."""
PARTS_OF_A_SUM = frozenset(
    (
        "box",
        "cls",
        "dfl",
        "obj",
        "seg",
        "pose",
        "kobj",
        "kpt",
        "bbox",
        "mask",
        "rpn_cls",
        "rpn_bbox",
        "rpn_box_reg",
        "objectness",
        "classifier",
        "box_reg",
        "giou",
        "iou",
        "l1",
        "ce",
        "dice",
    )
)
"""Where all parts of a loss are of these and there is no total, the total is their sum."""


def records(log: Log) -> Iterator[Record]:
    """The stream of one log, the header first."""
    return LogStream(log).records()


@dataclass
class _Row:
    row: int
    step: int
    values: dict[str, float]


class LogStream:
    """Turns one log into records."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.names = map_names(log.table.series, log.names, log.facts.get("units"))
        self.names |= {
            raw: replace(item, factor=unit_of(log.table.series[raw], item.factor))
            for raw, item in self.names.items()
            if item.name.endswith("_bytes") and raw in log.table.series
        }
        self.names |= find_loss_parts(log.table, self.names)
        self.clipping = Clipping.of(log, self.names)
        if self.clipping.after:
            self.names = {
                raw: replace(item, name="clipped_grad_norm") if item.name == "grad_norm" else item
                for raw, item in self.names.items()
            }
        self._sum = self._parts_of_a_sum()
        self._skips = any(item.kind == SKIP for item in log.events) and not any(
            item.name == "scaler_skipped" for item in self.names.values()
        )
        self.header = self._header()

    def records(self) -> Iterator[Record]:
        """The header, then everything in order."""
        yield self.header
        segment, seq, before = 0, 0, -1
        waiting = sorted(self.log.events, key=lambda item: item.row)
        at = 0
        for row in self._rows():
            restarted, skips = False, 0
            while at < len(waiting) and waiting[at].row <= row.row:
                event = waiting[at]
                at += 1
                restarted = restarted or event.kind == RESTART
                if event.kind == SKIP and self._skips:
                    skips += 1
                    continue
                seq += 1
                yield _event(event, segment, seq, max(before, 0))
            if before >= 0 and (row.step < before or restarted):
                segment += 1
                yield replace(self.header, segment=segment, seq=seq + 1)
            before = row.step
            seq += 1
            self._derive(row.values, skips)
            yield StepRecord(segment=segment, seq=seq, step=max(row.step, 0), values=row.values)
        for event in waiting[at:]:
            seq += 1
            yield _event(event, segment, seq, max(before, 0))

    def _derive(self, values: dict[str, float], skips: int) -> None:
        """What the log does not say but its numbers do."""
        if self._skips:
            values["scaler_skipped"] = float(skips)
        if self._sum:
            parts = [values[name] for name in self._sum if name in values]
            if len(parts) == len(self._sum):
                values["loss"] = math.fsum(parts) if all(map(math.isfinite, parts)) else math.nan
        coefficient = self.clipping.coefficient(values)
        if coefficient is not None:
            values["clip_coef"] = coefficient

    def _rows(self) -> Iterator[_Row]:
        """The rows that say anything, those of one step in a row joined."""
        table = self.log.table
        names = {raw: (item.name, item.factor) for raw, item in self.names.items()}
        told = (item.row for item in self.log.events if item.kind in (RESTART, SKIP))
        kept = select_rows(table, self.names, told)
        counts: dict[str, dict[int, float]] = {}
        if kept is not None:
            said = f"{len(kept)} of {len(table)} rows were looked at closely, the rest screened"
            if said not in self.log.notes:
                self.log.notes.append(said)
            counts = {
                item.name: summed(table, raw, kept)
                for raw, item in self.names.items()
                if item.name in SUMMED
            }
        current: _Row | None = None
        for row, step, values in table.rows(names, kept):
            for name, by_row in counts.items():
                if row in by_row:
                    values[name] = by_row[row]
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

    def _parts_of_a_sum(self) -> tuple[str, ...]:
        names = {item.name for item in self.names.values()}
        parts = sorted(name for name in names if name.startswith("loss/"))
        if "loss" in names or len(parts) < 2:
            return ()
        known = all(name.removeprefix("loss/") in PARTS_OF_A_SUM for name in parts)
        return tuple(parts) if known else ()

    def _header(self) -> Header:
        log = self.log
        signals = {
            named.name: honest(log, named.name, log.table.series[raw], log.signals.get(raw))
            for raw, named in self.names.items()
            if raw in log.table.series
        }
        rhythm = signals.get("loss") or next(iter(signals.values()), Signal())
        if self._sum:
            signals["loss"] = signals[self._sum[0]]
        if self._skips:
            span = max(rhythm.span, rhythm.every)
            signals["scaler_skipped"] = Signal(span=span, fold="sum", every=rhythm.every)
        if self.clipping.known:
            norm = signals.get("grad_norm", rhythm)
            signals["clip_coef"] = Signal(every=norm.every, span=norm.span, fold=norm.fold)
        facts = {**log.facts, "unit": log.unit, "path": str(log.path)}
        return Header(source=log.format, signals=signals, facts=facts, cadence="rows")


def loss_of(log: Log, names: dict[str, Named]) -> tuple[list[int], list[float]]:
    """(steps, values) of the loss, for a plot; empty where the log has none."""
    raw = next((raw for raw, named in names.items() if named.name == "loss"), None)
    if raw is None or raw not in log.table.series:
        return [], []
    series = log.table.series[raw]
    steps = np.frombuffer(log.table.steps, dtype=np.int64)[series.where()]
    return steps.tolist(), series.numbers().tolist()


def _event(event: LogEvent, segment: int, seq: int, step: int) -> EventRecord:
    return EventRecord(segment, seq, step, event.kind, dict(event.data))
