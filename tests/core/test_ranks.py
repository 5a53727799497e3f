"""Columns along the rank axis."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

from headway.checks.ranks._shared import (
    checksums_by_rank,
    group_ranks_by_value,
    say_ranks,
    values_by_rank,
)
from headway.core.records import Column, StepRecord


def record(**columns: Column) -> StepRecord:
    return StepRecord(0, 1, 1, {}, {f"rank/{name}": column for name, column in columns.items()})


def test_a_column_by_rank_leaves_out_what_is_no_number() -> None:
    some = record(loss=Column([1.0, math.nan, math.inf, 4.0], [0, 2, 5, 7]))
    assert values_by_rank(some, "rank/loss") == {0: 1.0, 7: 4.0}
    assert values_by_rank(some, "rank/grad_norm") == {}


def test_a_checksum_of_zero_is_none() -> None:
    assert checksums_by_rank(record(batch_hash=Column([5.0, 0.0, 5.0])), "rank/batch_hash") == {
        0: 5.0,
        2: 5.0,
    }


@thoroughly
@given(st.dictionaries(st.integers(0, 30), st.integers(0, 3).map(float)))
def test_ranks_are_alike_exactly_when_their_values_are(values: dict[int, float]) -> None:
    groups = group_ranks_by_value(values)
    assert sorted(rank for group in groups for rank in group) == sorted(values)
    for group in groups:
        assert group == sorted(group)
        assert len({values[rank] for rank in group}) == 1
    assert len(groups) == len(set(values.values()))
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)


def test_ranks_in_a_sentence() -> None:
    assert say_ranks([3]) == "rank 3"
    assert say_ranks([5, 3]) == "ranks 3, 5"
    assert say_ranks(range(8)) == "ranks 0, 1, 2 and 5 more"
