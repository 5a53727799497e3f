"""What stands out in a run of a million steps, found by whole pieces of it at once.

Of every signal the blocks of 64 values are told by a few numbers: the highest and where it is, the
middle, the spread. Steps that tell their tensors are told by how many of these are zero or not
finite, by the largest, and by how far any went from where it was. From that comes where a run has
to be looked at closely. Memory grows by a few numbers for each block, not with the steps.

The limits are those for other tools' long logs (`logs/row_selection.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headway.logs.row_selection import AFTER, BLOCK, RATES, spread
from headway.rundir.step_columns import Floats, Ints, StepColumns

MOST_SIGNALS = 64
LOOKS_AT_ONCE = 64
STRONG, RISEN = 8.0, 10.0
"""How far a value stands out of its block, and a level out of those before, in usual spreads."""
JUMP = 1.3
"""The factor by which a rate or a scale jumps."""


@dataclass(frozen=True, slots=True)
class RankedRow:
    """A row worth looking at; `strength` ranks those of one signal."""

    row: int
    strength: float


@dataclass
class RowRanges:
    """Rows with something in common; those close together are one run."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, rows: Sequence[int]) -> None:
        for row in rows:
            if self.ends and row - self.ends[-1] <= AFTER:
                self.ends[-1] = row
            elif len(self.begins) < 10_000:
                self.begins.append(row)
                self.ends.append(row)

    def places(self) -> Iterator[RankedRow]:
        """Where some of them begin and end; the first is the strongest."""
        for some in (self.begins, self.ends):
            for number, row in enumerate(spread(np.asarray(some, np.int64)).tolist()):
                yield RankedRow(row, 1e9 / (1 + number))


class SignalBlocks:
    """One signal."""

    def __init__(self, *, rate: bool = False) -> None:
        self._rate = rate
        self._bad, self._jumps = RowRanges(), RowRanges()
        self._rows: Ints = np.empty(0, np.int64)
        self._values: Floats = np.empty(0)
        self._told: list[Floats] = []
        """Of some blocks: the highest, its row, the first row, the middle, the spread, lowest."""
        self._last = np.nan

    def add(self, rows: Ints, values: Floats) -> None:
        finite = np.isfinite(values)
        if not finite.all():
            self._bad.add(rows[~finite].tolist())
            rows, values = rows[finite], values[finite]
        if self._rate and len(values):
            self._take_rate(rows, values)
        self._rows = np.concatenate([self._rows, rows])
        self._values = np.concatenate([self._values, values])
        whole = len(self._values) // BLOCK * BLOCK
        if whole:
            self._fold(whole)

    def places(self) -> Iterator[RankedRow]:
        """What stands out, in no order."""
        yield from self._bad.places()
        yield from self._jumps.places()
        if len(self._values):
            self._fold(len(self._values))
        if not self._told:
            return
        high, high_row, first, middle, width, low, low_row = np.concatenate(self._told).T
        # Where most blocks are of one value, a spread of none is the usual one.
        usual = float(np.median(width))
        yield from _outliers(high - middle, middle, width, usual, high_row, sign=1)
        yield from _outliers(middle - low, middle, width, usual, low_row, sign=-1)
        yield from _levels(middle, first)

    def _take_rate(self, rows: Ints, values: Floats) -> None:
        before = np.concatenate([[self._last], values[:-1]])
        self._last = float(values[-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = values / before
        self._jumps.add(rows[(ratio > JUMP) | (ratio < 1 / JUMP)].tolist())

    def _fold(self, count: int) -> None:
        size = min(BLOCK, count)
        blocks = self._values[:count].reshape(-1, size)
        rows = self._rows[:count].reshape(-1, size)
        self._values, self._rows = self._values[count:], self._rows[count:]
        # A sample of each block tells its level and spread well enough to rank what stands out.
        part = np.sort(blocks[:, ::4], axis=1)
        edge = min(3, (part.shape[1] - 1) // 2)
        each = np.arange(len(blocks))
        top, bottom = blocks.argmax(axis=1), blocks.argmin(axis=1)
        self._told.append(
            np.stack(
                [
                    blocks[each, top],
                    rows[each, top],
                    rows[:, 0],
                    part[:, part.shape[1] // 2],
                    part[:, -1 - edge] - part[:, edge],
                    blocks[each, bottom],
                    rows[each, bottom],
                ],
                axis=1,
            )
        )


def _outliers(
    distance: Floats, middle: Floats, width: Floats, usual: float, row: Floats, sign: int
) -> Iterator[RankedRow]:
    """The values furthest from their surroundings, in spreads of these."""
    before = np.concatenate([middle[:1], middle[:-1]])
    # Against the block before as well: a rise within the block widens its own spread.
    far = np.maximum(distance, distance + sign * (middle - before))
    calm = np.maximum(np.minimum(width, np.concatenate([width[:1], width[:-1]])), usual / 10)
    level = np.minimum(np.abs(middle), np.abs(before))
    yield from _strong(far / np.maximum(calm, 1e-12 + 1e-6 * level), row, STRONG)


def _levels(middle: Floats, first: Floats) -> Iterator[RankedRow]:
    """Where the level of some blocks differs from that of the blocks before."""
    for reach in (4, 32):
        if len(middle) < 4 * reach:
            continue
        sums = np.concatenate([[0.0], np.cumsum(middle)])
        means = (sums[reach:] - sums[:-reach]) / reach
        change = np.abs(means[reach:] - means[:-reach])
        usual = float(np.median(change)) + 1e-12 + 1e-9 * abs(float(np.median(middle)))
        yield from _strong(change / usual, first[reach : reach + len(change)], RISEN)


def _strong(strength: Floats, row: Floats, least: float) -> Iterator[RankedRow]:
    """The strongest, and the first of all that are strong."""
    strong = np.flatnonzero(strength > least)
    if not len(strong):
        return
    ranked = strong[np.argsort(-strength[strong], kind="stable")[:32]]
    for at in ranked.tolist():
        yield RankedRow(int(row[at]), float(strength[at]))
    for number, at in enumerate(strong[:3].tolist()):
        yield RankedRow(int(row[at]), float(strength[ranked[0]]) / (1 + number))


class TensorScreen:
    """One column over the tensors, as a few signals: what any of them does is seen in one."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Floats]] = []
        self._at: tuple[int, ...] | None = None
        self._usual: Floats | None = None
        self.signals = {name: SignalBlocks() for name in ("bad", "zero", "largest", "moved")}

    def add(self, row: int, values: Floats, index: Sequence[int] | None) -> None:
        if not len(values):
            return
        numbers, at = np.abs(values), None if index is None else tuple(index)
        if self._waiting and (at != self._at or len(numbers) != len(self._waiting[0][1])):
            self.fold()
            self._usual = None
        self._at = at
        self._waiting.append((row, numbers))
        if len(self._waiting) >= LOOKS_AT_ONCE:
            self.fold()

    def fold(self) -> None:
        """What waits becomes numbers."""
        if not self._waiting:
            return
        rows = np.asarray([row for row, _ in self._waiting], np.int64)
        table = np.stack([numbers for _, numbers in self._waiting])
        self._waiting = []
        finite = np.isfinite(table)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log10(np.where(finite & (table > 0), table, np.nan))
        if self._usual is None:
            self._usual = logs[0]
        moved = np.abs(logs - self._usual)
        self._usual = np.where(np.isnan(logs[-1]), self._usual, logs[-1])
        told = {
            "bad": (~finite).sum(axis=1),
            "zero": (table == 0).sum(axis=1),
            "largest": np.where(finite, table, 0.0).max(axis=1),
            "moved": np.nan_to_num(moved).max(axis=1),
        }
        for name, numbers in told.items():
            self.signals[name].add(rows, numbers.astype(np.float64))


class RunScreen:
    """All signals of a run. Fed with its steps in order."""

    def __init__(self) -> None:
        self.rows = 0
        self._signals: dict[str, SignalBlocks] = {}
        self._tensors: dict[str, TensorScreen] = {}
        self._held, self._turns = RowRanges(), RowRanges()
        self._step, self._segment = -1, 0

    def feed(self, rows: StepColumns) -> None:
        if not len(rows):
            return
        start = self.rows
        self.rows += len(rows)
        steps = np.concatenate([[self._step], rows.step])
        segments = np.concatenate([[self._segment], rows.segment])
        turned = (np.diff(steps) < 0) | (np.diff(segments) > 0)
        self._step, self._segment = int(steps[-1]), int(segments[-1])
        self._turns.add((np.flatnonzero(turned) + start).tolist())
        self._held.add((np.flatnonzero(rows.held) + start).tolist())
        for name, (at, values) in rows.values.items():
            known = self._signals.get(name)
            if known is None and len(self._signals) < MOST_SIGNALS:
                known = self._signals[name] = SignalBlocks(rate=name.partition("#")[0] in RATES)
            if known is not None:
                known.add(at + start, values)
        for look in rows.looks:
            for name, column in look.columns().items():
                told = self._tensors.get(name)
                if told is None and len(self._tensors) < MOST_SIGNALS:
                    told = self._tensors[name] = TensorScreen()
                if told is not None:
                    told.add(look.row + start, *column)

    def places(self) -> list[int]:
        """The rows worth looking at, the most striking of each signal before the second ones."""
        for tensors in self._tensors.values():
            tensors.fold()
        signals: list[RowRanges | SignalBlocks] = [self._turns, self._held, *self._signals.values()]
        signals += [told for tensors in self._tensors.values() for told in tensors.signals.values()]
        ranked = [sorted(signal.places(), key=lambda place: -place.strength) for signal in signals]
        longest = max((len(places) for places in ranked), default=0)
        return [
            places[turn].row for turn in range(longest) for places in ranked if turn < len(places)
        ]


def select_steps(count: int, places: Sequence[int], chosen: SelectionLimits) -> NDArray[np.bool_]:
    """The rows that checks are fed: the ends, stretches of all, and around what stands out."""
    keep = np.zeros(count, bool)
    keep[: chosen.head] = keep[-chosen.tail :] = True
    begins = np.linspace(0, max(count - chosen.stretch, 0), chosen.stretches).astype(np.int64)
    for begin in begins.tolist():
        keep[begin : begin + chosen.stretch] = True
    for place in places:
        if np.count_nonzero(keep) >= chosen.most:
            break
        keep[max(place - chosen.before, 0) : place + chosen.after] = True
    return keep


@dataclass(frozen=True, slots=True)
class SelectionLimits:
    """How many rows are looked at closely, and where."""

    head: int = 2000
    tail: int = 2000
    stretch: int = 200
    stretches: int = 40
    before: int = 300
    after: int = 100
    most: int = 30_000
