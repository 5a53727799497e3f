"""What a rank among thousands writes down: only what nobody else can tell.

Rank 0 knows the numbers of all ranks at every step. A line per step from each of 16,000 others
would say the same once more, in 16,000 files. What it cannot know is what a rank found in its own
batch and its own tensors, and what went wrong in that process alone.
"""

from __future__ import annotations

from headway.core.records import EventRecord, Header, Record, StepRecord, TensorRecord

FULL_RANKS = 64
"""Ranks below this one write everything: eight nodes of eight fit in one directory listing."""
DECIDED_TOGETHER = ("action", "scan", "roll-back", "resumed", "preempted", "end")
"""Events that happen on all ranks at once, so that rank 0 has told them."""


class Sparse:
    """Chooses the records of one rank that are worth a line."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._header: Header | None = None

    def choose(self, record: Record) -> list[Record]:
        """The record, after the header it needs; or nothing."""
        if isinstance(record, Header):
            self._header = record
            return []
        if not self._tells(record):
            return []
        header, self._header = self._header, None
        return [record] if header is None else [header, record]

    def _tells(self, record: Record) -> bool:
        if isinstance(record, StepRecord):
            return self._mine(record)
        if isinstance(record, EventRecord):
            return record.kind not in DECIDED_TOGETHER
        return isinstance(record, TensorRecord)

    def _mine(self, record: StepRecord) -> bool:
        """Whether the step went bad, and through this rank."""
        column = record.columns.get("rank/nonfinite")
        return column is not None and bool(dict(column.items()).get(self._rank))
