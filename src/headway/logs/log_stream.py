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
from headway.logs.log_names import Named, map_names
from headway.logs.log_table import Log, LogEvent, Series, Table
from headway.logs.signal_inference import Clipping, find_loss_parts, honest, unit_of
from headway.rundir.downsample import PICKED_ROWS, pick_rows

# Selects the rows of a very long log that the checks receive.

# Checks take their time over every row, and a log may have millions. Of a long one they are fed
# the beginning and the end, the surroundings of everything that stands out, and stretches of
# neighbouring rows at regular distances, so that levels, spreads and patterns from row to row are
# still there. What stands out is found by whole columns at once.

Rows = NDArray[np.int64]
Numbers = NDArray[np.float64]

LONG = 30_000
"""A log of no more rows is looked at whole."""
HEAD, TAIL = 1000, 1200
"""Rows at the beginning and the end."""
STRETCH, STRETCHES = 100, 40
"""Neighbouring rows, and how many such stretches there are at regular distances."""
BEFORE, AFTER = 300, 100
"""Rows around what stands out: enough before it that a check knows what was usual."""
BLOCK = 64
"""Columns are screened in blocks of so many values."""
LOSSES = ("loss", "grad_norm")
RATES = ("lr", "loss_scale")
SUMMED = ("nan_steps",)
"""Numbers that count what happened since the row before: what lies in a gap is added after it."""
COUNTED = (*SUMMED, "scaler_skipped")


def select_rows(
    table: Table, names: Mapping[str, Named], also: Iterable[int] = ()
) -> NDArray[np.int64] | None:
    """The rows that checks are fed; None: all of them. `also`: rows where something happened."""
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
    """Of a count, its sum since the kept row before, by kept row."""
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
    """Positions in a series that stand out."""
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
        return places + _turns(values)
    places += _outliers(values)
    return places + _levels(values)


def _events(flags: NDArray[np.bool_]) -> list[int]:
    """Where flags begin and end; runs that are close together are one."""
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
    """The values furthest above their surroundings, in spreads of these."""
    blocks = _blocks(values)
    if len(blocks) < 3:
        return []
    tops = blocks.argmax(axis=1)
    peaks = blocks[np.arange(len(blocks)), tops]
    # A sample of each block tells its level and spread well enough to rank what stands out.
    part = np.sort(blocks[:, ::4], axis=1)
    middle, width = part[:, part.shape[1] // 2], part[:, -4] - part[:, 3]
    usual = np.median(width)
    # Against the block before as well: a rise within the block widens its own spread.
    level = np.minimum(middle, np.concatenate([middle[:1], middle[:-1]]))
    calm = np.maximum(np.minimum(width, np.concatenate([width[:1], width[:-1]])), usual / 10)
    strength = (peaks - level) / np.maximum(calm, 1e-12 + 1e-6 * np.abs(level))
    return _strongest(strength, np.arange(len(blocks)) * BLOCK + tops, least=8.0)


def _levels(values: Numbers) -> list[int]:
    """Where the level of some blocks differs most from that of the blocks before."""
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


def _turns(values: Numbers) -> list[int]:
    """Where a rate or a scale jumps, up or down, by a factor of 1.3 or more."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = values[1:] / values[:-1]
    return _events(np.concatenate([[False], (ratio > 1.3) | (ratio < 1 / 1.3)]))


def _strongest(strength: Numbers, at: Rows, least: float) -> list[int]:
    """The strongest places, and of those that are as strong the first."""
    strong = np.flatnonzero(strength > least)
    if not len(strong):
        return []
    if len(strong) > PICKED_ROWS:
        order = strong[np.argsort(-strength[strong], kind="stable")[:PICKED_ROWS]]
        strong = np.unique(np.concatenate([order, strong[:3]]))
    return [int(place) for place in at[strong]]


# Turns a log into the stream of records that the checks receive.

# Names become ours, every signal is described as honestly as the log allows, rows of one step
# become one record, and where the steps run backwards a new segment begins: the run was restarted.

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
