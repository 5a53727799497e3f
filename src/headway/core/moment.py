"""The place of a record in the stream, as plain data a check can keep.

A fault is often seen long after it began. A check keeps the moment of the onset and builds its
finding there: that is the step a user wants to look at, and the order a diagnosis ranks by.
"""

from __future__ import annotations

from typing import TypeAlias

from headway.core.records import StepRecord

Moment: TypeAlias = tuple[int, int, int, int]
"""(segment, seq, step, rank)"""


def moment_of(record: StepRecord) -> Moment:
    """Where this record stands."""
    return (record.segment, record.seq, record.step, record.rank)


def record_at(moment: Moment) -> StepRecord:
    """An empty record in that place, to build a finding at."""
    segment, seq, step, rank = moment
    return StepRecord(segment, seq, step, rank=rank)
