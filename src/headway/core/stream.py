"""Putting records of several files or ranks into one order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from headway.core.records import Record


def merge(streams: Iterable[Iterable[Record]]) -> Iterator[Record]:
    """One stream ordered by (segment, seq, rank) from streams that are each in that order.

    Lazy: holds one record per stream, so a run of any length passes in bounded memory.
    """
    return heapq.merge(*streams, key=lambda record: (record.segment, record.seq, record.rank))
