"""The five kinds of records in a stream, and their order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headway.core.signals import Cadence, Signal, family

# A stream consists of five kinds of records:

#     Header        what the run is and what its signals mean
#     StepRecord    the numbers of one optimizer step
#     SetupRecord   facts about objects before a step is taken (optimizer coverage, devices)
#     TensorRecord  the state of one tensor at one moment (a live scan, a checkpoint)
#     EventRecord   an event (an action of the guard, a new segment, a note)

# The order is `(segment, seq)`: a run that is resumed or rolled back repeats its steps, so `step`
# is a label for people, not an order. `seq` counts the records of a rank; only a header may have
# the number of the record that follows it.


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


_PLAIN = Signal()


@dataclass(frozen=True, slots=True)
class Header:
    """Describes the run; the first record of a stream, repeated if a segment changes it."""

    source: str
    """The reader or recorder of the stream: `headway`, `hf-trainer`, … For messages only."""
    signals: Mapping[str, Signal] = field(default_factory=dict)
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names along each axis, written once instead of in every step."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions, devices, settings, for people to read."""
    world_size: int = 1
    segment: int = 0
    seq: int = 0
    rank: int = 0
    cadence: Cadence = "steps"
    """How often and when the source delivers its values."""
    training: int = 0
    """Which training of the script: a script may train one model and then another one."""

    def names(self, axis: str) -> Sequence[str]:
        """The names along an axis; empty if the source does not have it."""
        return self.axes.get(axis, ())

    def steps_per_value(self, name: str) -> int:
        """Number of steps that one value of a signal represents."""
        signal = self.signals.get(name, _PLAIN)
        # In a log the values between two rows are missing; a live run samples others in between.
        return signal.steps if self.cadence == "rows" else signal.span

    def steps_per_label(self, name: str) -> int:
        """Steps from one record number to the next: more than 1 if a log counts epochs."""
        return self.signals.get(name, _PLAIN).per_label if self.cadence == "rows" else 1


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The numbers of one optimizer step, known before its update is applied or skipped."""

    segment: int
    seq: int
    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)
    held: bool = False
    """The update was skipped; weights unchanged."""
    rank: int = 0

    def family(self, name: str) -> Sequence[tuple[str, float]]:
        """The scalar of every optimizer: `grad_norm`, `grad_norm#1`, …"""
        values = self.values
        if "optimizers" not in values:
            return ((name, values[name]),) if name in values else ()
        found = [(key, value) for key, value in values.items() if family(key) == name]
        return sorted(found, key=lambda item: item[0] != name)  # the first optimizer's first


@dataclass(frozen=True, slots=True)
class SetupRecord:
    """Facts about the objects of a run: optimizer coverage, devices, loss calls, …"""

    segment: int
    seq: int
    topic: str
    """What the facts are about: `optimizer`, `loss-call`, …"""
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
    """Other facts: bad rows, the file it came from."""
    rank: int = 0

    @property
    def nonfinite(self) -> int:
        """Number of elements that are NaN or infinite."""
        return int(self.stats.get("nan", 0) + self.stats.get("inf", 0))


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event at a point of the run."""

    segment: int
    seq: int
    step: int
    kind: str
    """`action`, `axis`, `note`, `end`, …"""
    data: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0


Record: TypeAlias = Header | StepRecord | SetupRecord | TensorRecord | EventRecord


# The place of a record in the stream, as plain data that a check can keep. A fault is often
# detected long after it began; a check keeps the moment of the onset and reports its finding
# there, because a user wants to inspect that step and a diagnosis ranks by that order.

Moment: TypeAlias = tuple[int, int, int, int]
"""(segment, seq, step, rank)"""


def moment_of(record: StepRecord) -> Moment:
    """The place of this record."""
    return (record.segment, record.seq, record.step, record.rank)


def record_at(moment: Moment) -> StepRecord:
    """An empty record at that place, to build a finding with."""
    segment, seq, step, rank = moment
    return StepRecord(segment, seq, step, rank=rank)


def merge_streams(streams: Iterable[Iterable[Record]]) -> Iterator[Record]:
    """Merge streams, each ordered by (segment, seq, rank), into one in the same order.

    Lazy: keeps one record per stream, so the memory is bounded for runs of any length.
    """
    return heapq.merge(*streams, key=lambda record: (record.segment, record.seq, record.rank))
