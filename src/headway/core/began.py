"""Facts that sum up many steps: the finding stands where what they tell of began."""

from __future__ import annotations

from headway.core.facts import Facts
from headway.core.records import SetupRecord, StepRecord


def began(record: SetupRecord) -> StepRecord:
    """An empty record at the `first_step` of these facts, or where they were told."""
    first = Facts.of(record).whole("first_step")
    step = record.step if first is None or first < 0 else min(first, record.step)
    return StepRecord(record.segment, record.seq, step, rank=record.rank)
