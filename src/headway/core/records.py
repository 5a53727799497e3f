"""The five kinds of record that make up the stream, their order, and a record's position in it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headway.core.signals import Cadence, Signal, family

# The five kinds of record, and nothing else, travel the stream.

#     Header        what the run is and what its signals mean
#     StepRecord    the numbers of one optimizer step
#     SetupRecord   facts about objects before a step is taken (optimizer coverage, devices)
#     TensorRecord  the state of one tensor at one moment (a live scan, a checkpoint)
#     EventRecord   something that happened (an action of the guard, a new segment, a note)

# Order is `(segment, seq)`: a run that is resumed or rolled back repeats its steps, so `step` is a
# label for people and never an order. `seq` counts the records of a rank; only a header may bear
# the number of the record it precedes.


@dataclass(frozen=True, slots=True)
class Column:
    """One value per member of an axis, or of some of its members."""

    values: Sequence[float]
    index: Sequence[int] | None = None
    """Positions on the axis that `values` belong to; None: all of them, in order."""

    def items(self) -> Iterator[tuple[int, float]]:
        """(position on the axis, value) pairs."""
        if self.index is None:
            return iter(enumerate(self.values))
        return iter(zip(self.index, self.values, strict=True))


@dataclass(frozen=True, slots=True)
class Header:
    """What the run is; the first record of a stream, and again where a segment changes it."""

    source: str
    """The reader or probe that made the stream: `headway`, `hf-trainer`, …"""
    signals: Mapping[str, Signal] = field(default_factory=dict)
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names along each axis, written once instead of in every step."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions, devices, settings: whatever helps a reader, nothing a check may need."""
    world_size: int = 1
    segment: int = 0
    seq: int = 0
    rank: int = 0
    cadence: Cadence = "steps"
    """How densely and when the source delivers its numbers."""

    def names(self, axis: str) -> Sequence[str]:
        """The names along an axis; empty when the source does not know it."""
        return self.axes.get(axis, ())

    def steps_per_value(self, name: str) -> int:
        """How many steps one value of a signal stands for."""
        signal = self.signals.get(name, Signal())
        # In a log the values between two rows are missing; a live run samples others in between.
        return signal.steps if self.cadence == "rows" else signal.span

    def steps_per_label(self, name: str) -> int:
        """Steps from one number of a record to the next: more than 1 where a log counts epochs."""
        return self.signals.get(name, Signal()).per_label if self.cadence == "rows" else 1


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The numbers of one optimizer step, as known when it was decided."""

    segment: int
    seq: int
    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)
    held: bool = False
    """The update was held back: weights are those of the step before."""
    rank: int = 0

    def family(self, name: str) -> Iterator[tuple[str, float]]:
        """The scalar and its namesakes of further optimizers: `grad_norm`, `grad_norm#1`, …"""
        values = self.values
        if name in values:
            yield name, values[name]
        if self._has_namesakes():
            for key, value in values.items():
                if key != name and family(key) == name:
                    yield key, value

    def _has_namesakes(self) -> bool:
        return "optimizers" in self.values


@dataclass(frozen=True, slots=True)
class SetupRecord:
    """Facts about the objects of a run, found by looking at them, not by stepping."""

    segment: int
    seq: int
    topic: str
    """What was looked at: `optimizer`, `model`, `environment`, …"""
    facts: Mapping[str, Any]
    step: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor at one moment."""

    segment: int
    seq: int
    step: int
    name: str
    role: str
    """`weight`, `buffer`, `moment`, `gradient` or `input`."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stats: Mapping[str, float] = field(default_factory=dict)
    """`nan`, `inf`, `zero` counts, `min`, `max`, `norm` of the finite part. Absent: unmeasured."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth naming: bad rows, the file it came from."""
    rank: int = 0

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN or infinite."""
        return int(self.stats.get("nan", 0) + self.stats.get("inf", 0))


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened at a point of the run."""

    segment: int
    seq: int
    step: int
    kind: str
    """`action`, `axis`, `note`, `end`, …"""
    data: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0


Record: TypeAlias = Header | StepRecord | SetupRecord | TensorRecord | EventRecord


# The place of a record in the stream, as plain data a check can keep.

# A fault is often seen long after it began. A check keeps the moment of the onset and builds its
# finding there: that is the step a user wants to look at, and the order a diagnosis ranks by.

Moment: TypeAlias = tuple[int, int, int, int]
"""(segment, seq, step, rank)"""


def moment_of(record: StepRecord) -> Moment:
    """Where this record stands."""
    return (record.segment, record.seq, record.step, record.rank)


def record_at(moment: Moment) -> StepRecord:
    """An empty record in that place, to build a finding at."""
    segment, seq, step, rank = moment
    return StepRecord(segment, seq, step, rank=rank)


# Putting records of several files or ranks into one order.


def merge_streams(streams: Iterable[Iterable[Record]]) -> Iterator[Record]:
    """One stream ordered by (segment, seq, rank) from streams that are each in that order.

    Lazy: holds one record per stream, so a run of any length passes in bounded memory.
    """
    return heapq.merge(*streams, key=lambda record: (record.segment, record.seq, record.rank))
