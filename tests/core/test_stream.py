"""Merging: one order out of several files or ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

from headway.core.records import StepRecord, merge_streams

places = st.tuples(st.integers(0, 3), st.integers(0, 6))


def place(record: StepRecord) -> tuple[int, int, int]:
    return (record.segment, record.seq, record.rank)


@thoroughly
@given(st.lists(st.lists(places, max_size=8).map(sorted), max_size=5))
def test_streams_that_are_in_order_become_one_that_is_and_nothing_is_lost(
    runs: list[list[tuple[int, int]]],
) -> None:
    streams = [
        [StepRecord(segment, seq, seq, rank=rank) for segment, seq in run]
        for rank, run in enumerate(runs)
    ]
    merged = list(merge_streams(reversed(streams)))
    assert [place(record) for record in merged] == sorted(
        place(record) for stream in streams for record in stream
    )
    for rank, stream in enumerate(streams):  # the very records, each rank's in its own order
        mine = [record for record in merged if record.rank == rank]
        assert all(one is other for one, other in zip(mine, stream, strict=True))


def test_a_segment_comes_before_a_step_and_a_step_before_a_rank() -> None:
    streams = [[StepRecord(0, 5, 5), StepRecord(1, 0, 0)], [StepRecord(0, 5, 5, rank=1)]]
    assert [place(item) for item in merge_streams(streams)] == [(0, 5, 0), (0, 5, 1), (1, 0, 0)]


def test_endless_streams_are_merged_one_record_at_a_time() -> None:
    taken = [0, 0]

    def endless(rank: int) -> Iterator[StepRecord]:
        for seq in itertools.count():
            taken[rank] += 1
            yield StepRecord(0, seq, seq, rank=rank)

    first = list(itertools.islice(merge_streams([endless(0), endless(1)]), 10))
    assert [(record.seq, record.rank) for record in first] == [
        (seq, rank) for seq in range(5) for rank in (0, 1)
    ]
    assert max(taken) <= 7, "no more was read than was asked for, and one ahead"


def test_no_stream_is_no_record() -> None:
    assert list(merge_streams([])) == []
    assert list(merge_streams([[], []])) == []
