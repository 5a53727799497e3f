"""Turns a log into the stream of records that the checks receive, and selects the rows of a very
long one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headway.core.records import EventRecord, Header, Record, StepRecord
from headway.core.signals import Signal
from headway.logs.log_endings import find_ending
from headway.logs.log_names import Named, map_name, map_names
from headway.logs.log_table import Log, LogEvent, Series, Table
from headway.logs.signal_inference import Clipping, corrected, find_loss_parts, unit_of
from headway.rundir.downsample import PICKED_ROWS, pick_rows

# Row selection. Checks are slow per row, and a log may have millions of rows. Of a long log they
# get its start and end, the rows around everything unusual, and stretches of neighbouring rows at
# regular distances, which keep levels, spreads and row-to-row patterns. What is unusual is found
# column by column.

Rows = NDArray[np.int64]
Numbers = NDArray[np.float64]

LONG = 30_000
"""Rows up to which the checks get the whole log."""
HEAD, TAIL = 1000, 1200
"""Rows at the start and the end."""
STRETCH, STRETCHES = 100, 40
"""Length and number of the stretches of neighbouring rows."""
BEFORE, AFTER = 300, 100
"""Rows around something unusual; enough before it for a check to learn what is usual."""
BLOCK = 64
"""Values per block in which a column is screened."""
LOSSES = ("loss", "grad_norm")
RATES = ("lr", "loss_scale")
SUMMED = ("nan_steps",)
"""Counts since the previous row: those of dropped rows are added to the next kept row."""
COUNTED = (*SUMMED, "scaler_skipped")


def select_rows(
    table: Table, names: Mapping[str, Named], also: Iterable[int] = ()
) -> NDArray[np.int64] | None:
    """The rows that the checks get; None for all. `also`: rows with an event."""
    count = len(table)
    if count <= LONG:
        return None
    places: list[int] = [int(row) for row in pick_rows(np.fromiter(also, np.int64))]
    places += _restarts(table)
    for raw, named in names.items():
        series = table.series.get(raw)
        if series is None or len(series) < 2:
            continue
        rows = series.where()
        places += [int(rows[at]) for at in _places(named.name, series) if at < len(rows)]
    keep = np.zeros(count, dtype=bool)
    keep[:HEAD] = keep[-TAIL:] = True
    for begin in np.linspace(0, count - STRETCH, STRETCHES).astype(np.int64).tolist():
        keep[begin : begin + STRETCH] = True
    for place in places:
        keep[max(place - BEFORE, 0) : place + AFTER] = True
    return np.flatnonzero(keep).astype(np.int64)


def summed(table: Table, raw: str, kept: Rows) -> dict[int, float]:
    """The sum of a count since the previous kept row, by kept row."""
    series = table.series[raw]
    rows, values = series.where(), series.numbers()
    places = np.minimum(np.searchsorted(kept, rows), len(kept) - 1)
    sums = np.bincount(places, weights=np.nan_to_num(values), minlength=len(kept))
    found = np.flatnonzero(sums)
    return dict(zip(kept[found].tolist(), sums[found].tolist(), strict=True))


def _restarts(table: Table) -> list[int]:
    steps = np.frombuffer(table.steps, dtype=np.int64)
    back = np.flatnonzero(steps[1:] < steps[:-1]) + 1
    return [int(row) for row in pick_rows(back)]


def _places(name: str, series: Series) -> list[int]:
    """Positions in a series that are unusual."""
    values = series.numbers()
    if name in COUNTED:
        return _events(values > 0)
    if name not in (*LOSSES, *RATES) and not name.startswith("loss/"):
        return []
    places: list[int] = []
    finite = np.isfinite(values)
    if not finite.all():
        places += _events(~finite)
        values = np.where(finite, values, np.nanmedian(values[finite]) if finite.any() else 0.0)
    if name in RATES:
        return places + _jumps(values)
    places += _outliers(values)
    return places + _levels(values)


def _events(flags: NDArray[np.bool_]) -> list[int]:
    """Where runs of True begin and end; runs close together are one."""
    at = np.flatnonzero(flags)
    if not len(at):
        return []
    breaks = np.flatnonzero(np.diff(at) > AFTER)
    begins = at[np.concatenate([[0], breaks + 1])]
    ends = at[np.concatenate([breaks, [len(at) - 1]])]
    return [int(row) for row in (*pick_rows(begins), *pick_rows(ends))]


def _blocks(values: Numbers) -> Numbers:
    whole = len(values) // BLOCK * BLOCK
    return values[:whole].reshape(-1, BLOCK)


def _outliers(values: Numbers) -> list[int]:
    """The values furthest above the values around them, relative to their spread."""
    blocks = _blocks(values)
    if len(blocks) < 3:
        return []
    tops = blocks.argmax(axis=1)
    peaks = blocks[np.arange(len(blocks)), tops]
    # A sample of each block gives level and spread well enough for a ranking.
    part = np.sort(blocks[:, ::4], axis=1)
    middle, width = part[:, part.shape[1] // 2], part[:, -4] - part[:, 3]
    usual = np.median(width)
    # Compared with the block before as well: a rise inside a block increases its own spread.
    level = np.minimum(middle, np.concatenate([middle[:1], middle[:-1]]))
    calm = np.maximum(np.minimum(width, np.concatenate([width[:1], width[:-1]])), usual / 10)
    strength = (peaks - level) / np.maximum(calm, 1e-12 + 1e-6 * np.abs(level))
    return _strongest(strength, np.arange(len(blocks)) * BLOCK + tops, least=8.0)


def _levels(values: Numbers) -> list[int]:
    """Where the level of several blocks differs most from the blocks before."""
    blocks = _blocks(values)
    if len(blocks) < 16:
        return []
    levels = np.median(blocks[:, ::4], axis=1)
    found: list[int] = []
    for reach in (4, 32):
        if len(levels) < 4 * reach:
            continue
        sums = np.concatenate([[0.0], np.cumsum(levels)])
        means = (sums[reach:] - sums[:-reach]) / reach
        change = means[reach:] - means[:-reach]  # between the blocks before and after
        usual = np.median(np.abs(change)) + 1e-12 + 1e-9 * abs(float(np.median(levels)))
        found += _strongest(change / usual, (np.arange(len(change)) + reach) * BLOCK, least=10.0)
    return found


def _jumps(values: Numbers) -> list[int]:
    """Where a rate or a scale jumps, up or down, by a factor of 1.3 or more."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = values[1:] / values[:-1]
    return _events(np.concatenate([[False], (ratio > 1.3) | (ratio < 1 / 1.3)]))


def _strongest(strength: Numbers, at: Rows, least: float) -> list[int]:
    """The strongest places; the first ones if many are equally strong."""
    strong = np.flatnonzero(strength > least)
    if not len(strong):
        return []
    if len(strong) > PICKED_ROWS:
        order = strong[np.argsort(-strength[strong], kind="stable")[:PICKED_ROWS]]
        strong = np.unique(np.concatenate([order, strong[:3]]))
    return [int(place) for place in at[strong]]


# Names become ours, every signal is described as honestly as the log allows, rows of one step
# become one record, and where the steps run backwards a new segment begins: the run was restarted.

MEMORY = ("host_rss_bytes", "device_allocated_bytes")
"""Signals for which a log may have several columns."""
RESTART = "restart"
"""Kind of event that starts a new segment, even if the steps continue."""
SKIP = "scaler-skip"
"""Kind of event for one skipped optimizer step."""
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
"""If all components of the loss are among these and there is no total, the loss is their sum."""


def records(log: Log) -> Iterator[Record]:
    """The records of a log, the header first."""
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
        self._choose_memory_columns()
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

    def _choose_memory_columns(self) -> None:
        """Of several columns for one kind of memory, take the one that grows most: it is the one
        that would end the run."""
        series, units = self.log.table.series, self.log.facts.get("units") or {}
        for signal in MEMORY:
            columns = {
                raw: name
                for raw in series
                if raw not in self.log.names
                and (name := map_name(raw, units.get(raw, ""))) is not None
                and name.name == signal
            }
            if len(columns) > 1:
                grown = max(columns, key=lambda raw: _growth(series[raw]))
                self.names = {r: n for r, n in self.names.items() if n.name != signal}
                self.names[grown] = columns[grown]

    def records(self) -> Iterator[Record]:
        """The header, then steps and events in order."""
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
        if ending := find_ending(waiting[at:]):
            yield _event(ending, segment, seq + 1, max(before, 0))

    def _derive(self, values: dict[str, float], skips: int) -> None:
        """Adds signals that follow from the others."""
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
        """The rows with values; neighbouring rows of the same step are joined."""
        table = self.log.table
        names = {raw: (item.name, item.factor) for raw, item in self.names.items()}
        with_event = (item.row for item in self.log.events if item.kind in (RESTART, SKIP))
        kept = select_rows(table, self.names, with_event)
        counts: dict[str, dict[int, float]] = {}
        if kept is not None:
            note = f"{len(kept)} of {len(table)} rows were checked in detail, the others screened"
            if note not in self.log.notes:
                self.log.notes.append(note)
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
            named.name: corrected(log, named.name, log.table.series[raw], log.signals.get(raw))
            for raw, named in self.names.items()
            if raw in log.table.series
        }
        cadence = signals.get("loss") or next(iter(signals.values()), Signal())
        if self._sum:
            signals["loss"] = signals[self._sum[0]]
        if self._skips:
            span = max(cadence.span, cadence.every)
            signals["scaler_skipped"] = Signal(span=span, fold="sum", every=cadence.every)
        if self.clipping.known:
            norm = signals.get("grad_norm", cadence)
            signals["clip_coef"] = Signal(every=norm.every, span=norm.span, fold=norm.fold)
        facts = {**log.facts, "unit": log.unit, "path": str(log.path)}
        memory = {named.name: raw for raw, named in self.names.items() if named.name in MEMORY}
        facts["memory_columns"] = {name: raw for name, raw in memory.items() if name != raw}
        facts["in_percent"] = [name for name, raw in memory.items() if self.names[raw].percent]
        return Header(source=log.format, signals=signals, facts=facts, cadence="rows")


def loss_of(log: Log, names: dict[str, Named]) -> tuple[list[int], list[float]]:
    """(steps, values) of the loss, for a plot; empty if the log has none."""
    raw = next((raw for raw, named in names.items() if named.name == "loss"), None)
    if raw is None or raw not in log.table.series:
        return [], []
    series = log.table.series[raw]
    steps = np.frombuffer(log.table.steps, dtype=np.int64)[series.where()]
    return steps.tolist(), series.numbers().tolist()


def _growth(series: Series) -> float:
    """How many times larger the end of a column is than its start."""
    values = series.numbers()
    values = values[np.isfinite(values)]
    few = max(len(values) // 10, 1)
    first = float(np.median(values[:few])) if len(values) else 0.0
    return float(np.median(values[-few:])) / first if first > 0 else 0.0


def _event(event: LogEvent, segment: int, seq: int, step: int) -> EventRecord:
    return EventRecord(segment, seq, step, event.kind, dict(event.data))
