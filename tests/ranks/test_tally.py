"""Reading the table of the ranks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly

from headway.guard.measure.step_record import StepRecordBuilder
from headway.guard.ranks import rank_table
from headway.guard.ranks.rank_table import CALLS, MISSING, UNKNOWN, RankField, RankTable


def row(**places: float) -> list[float]:
    numbers = [UNKNOWN if slot in MISSING else 0.0 for slot in RankField]
    for name, number in places.items():
        numbers[RankField[name]] = number
    return numbers


def table_of(*rows: list[float]) -> RankTable:
    table = torch.tensor(rows)
    return RankTable(table[:, CALLS].sum(dim=0).tolist(), table)


def test_the_rank_with_the_bad_loss_is_the_culprit() -> None:
    losses = (1.0, math.nan, 2.0)
    table = table_of(*(row(LOSS=loss, LOSSES=1) for loss in losses))
    assert table.culprits() == [1]


def test_the_first_backward_pass_tells() -> None:
    """By the second pass the gradients of all ranks carry what one made in the first."""
    rows = [row(MADE=math.nan, FIRST=2), row(MADE=math.nan, FIRST=1), row(MADE=1.0)]
    assert table_of(*rows).culprits() == [1]
    assert table_of(*rows).nonfinite([0, 1, 2])["rank/nonfinite"].values == [0.0, 1.0, 0.0]


def test_rows_that_are_on_the_host_are_not_read_from_the_device() -> None:
    rows = row(LOSS=1.0, LOSSES=1), row(MADE=3.0)
    table = RankTable(
        [0.0], torch.empty(len(rows), len(rows[0]), device="meta"), rows=[*rows[0], *rows[1]]
    )
    assert table.columns([0, 1])["rank/loss"].values == [1.0]
    assert table.columns([0, 1])["rank/grad_norm"].index == [1]


def test_nobody_is_blamed_blindly() -> None:
    """The gradient is bad, the losses are fine, and nobody could look before the reduction."""
    assert not table_of(row(LOSS=1.0, LOSSES=1), row(LOSS=2.0, LOSSES=1)).nonfinite([0, 1])


def test_what_was_not_measured_is_absent() -> None:
    columns = table_of(row(LOSS=1.0, LOSSES=1, SECONDS=0.5), row(MADE=3.0)).columns([0, 1])
    assert {name: dict(column.items()) for name, column in columns.items()} == {
        "rank/loss": {0: 1.0},
        "rank/step_time_s": {0: 0.5},
        "rank/grad_norm": {1: 3.0},
    }


def test_calls_are_told_apart() -> None:
    table = table_of(row(LEAVE=1, IDLE=1), row(POISONED=1), row(IDLE=1))
    assert table.who(RankField.LEAVE) == [0]
    assert table.who(RankField.POISONED) == [1]
    assert table.who(RankField.IDLE) == [0, 2]
    assert table.count(RankField.IDLE) == 2
    assert table.who(RankField.OFF) == []


@lightly
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=6))
def test_only_the_earliest_are_culprits(firsts: list[float]) -> None:
    found = table_of(*(row(FIRST=first, MADE=1.0) for first in firsts)).culprits()
    bad = [first for first in firsts if first]
    assert found == [at for at, first in enumerate(firsts) if bad and first == min(bad)]


@lightly
@given(st.integers(0, 11), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_a_checksum_sees_one_bit(at: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(12, generator=torch.Generator().manual_seed(at)).to(dtype)
    other = tensor.clone()
    bits = other.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    bits[at] ^= 1
    here = torch.device("cpu")
    one, two = (rank_table.checksum_tensors([t, tensor], here) for t in (tensor, other))
    assert one is not None
    assert two is not None
    assert one != two
    assert one == one.int().float(), "a whole number that float32 carries exactly"


def test_a_checksum_sees_tensors_that_changed_places() -> None:
    one, two, here = torch.ones(3), torch.zeros(3), torch.device("cpu")
    assert rank_table.checksum_tensors([one, two], here) != rank_table.checksum_tensors(
        [two, one], here
    )


def test_batches_without_tensors_have_no_checksum() -> None:
    assert rank_table.checksum_batches([{"text": "words"}, 3], torch.device("cpu")) is None


def test_large_and_odd_batches() -> None:
    big = torch.arange(1 << 18)
    here = torch.device("cpu")
    for batch in (big, big.view(512, 512).t(), big > 5, torch.randn(3).to_sparse(), big.double()):
        assert rank_table.checksum_batches([batch], here) is not None
    assert rank_table.checksum_batches([big], here) != rank_table.checksum_batches([big + 1], here)


@pytest.mark.parametrize(
    ("begin_equal", "first", "compared"),
    [(None, (5.0, 5.0), True), (None, (5.0, 6.0), False), (True, (5.0, 6.0), True)],
)
def test_without_a_wrapper_what_begins_different_is_a_shard(
    begin_equal: bool | None, first: tuple[float, float], compared: bool
) -> None:
    ranks: Any = SimpleNamespace(rank=0, size=2, begin_equal=begin_equal, same_batches=False)
    context: Any = SimpleNamespace(sampled=True)
    for checksums in (first, (7.0, 8.0)):
        builder = StepRecordBuilder(0)
        tally = table_of(*(row(WEIGHTS=value) for value in checksums))
        builder.add_ranks(tally, context, ranks, bad=False)
        assert ("rank/weights_hash" in builder.columns) == compared
