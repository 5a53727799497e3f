"""Other ranks divide the rest of an epoch: no sample is lost, none is used twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from headway.errors import ResumeRefused
from headway.guard.recovery import sample_order
from headway.guard.recovery.data_position import DataPosition


def loader(length: int, ranks: int, rank: int, batch: int, **options: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(length))
    sampler: DistributedSampler[Any] = DistributedSampler(data, ranks, rank, seed=3, **options)
    sampler.set_epoch(2)
    return DataLoader(data, batch, sampler=sampler, drop_last=options.get("drop_last", False))


def taken(one: Any, count: int | None = None) -> list[int]:
    batches = list(one)[:count]
    return [int(value) for (batch,) in batches for value in batch]


@lightly
@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4)), max_size=3),
    st.booleans(),
)
def test_any_chain_of_sizes_covers_the_epoch_once(
    length: int, chain: list[tuple[int, int, int]], shuffle: bool
) -> None:
    """Each link: (ranks, samples of a batch, batches that it makes before it is interrupted)."""
    seen: Counter[int] = Counter()
    state: dict[str, Any] | None = None
    given_before = 0
    for ranks, batch, batches in [*chain, (3, 2, 10**6)]:
        loaders = [loader(length, ranks, rank, batch, shuffle=shuffle) for rank in range(ranks)]
        whole = (length + ranks - 1) // ranks // batch
        if state is None:
            orders = [sample_order.of_loader(one) for one in loaders]
            sources: list[Any] = loaders
        else:
            orders = [sample_order.continue_order(state, given_before, one) for one in loaders]
            assert len({order for order in orders if order}) == 1
            left = length - orders[0].used  # type: ignore[union-attr]
            whole = (left + ranks - 1) // ranks // batch
            sources = [order.rest(one) for order, one in zip(orders, loaders, strict=True) if order]
        done = batches if batches >= 10**6 else min(batches, whole)
        for source in sources:
            seen.update(taken(source, done))
        assert orders[0] is not None
        state, given_before = orders[0].state_dict(), done
    assert set(seen) == set(range(length))
    # The padding of DistributedSampler: fewer than one sample per rank, once for each link.
    assert sum(seen.values()) - length < sum(ranks for ranks, _, _ in [*chain, (3, 2, 0)])


def test_samples_that_cannot_be_divided_are_dropped_where_the_user_says_so() -> None:
    order = sample_order.of_loader(loader(17, 2, 0, 2, drop_last=True))
    assert order is not None
    loaders = [loader(17, 4, rank, 1, drop_last=True) for rank in range(4)]
    rests = [sample_order.continue_order(order.state_dict(), 2, one).rest(one) for one in loaders]
    counts = [len(taken(rest)) for rest in rests]
    assert counts == [2, 2, 2, 2], "8 of 17 are used, and 9 left"


def test_a_loader_without_an_order_is_refused_and_the_cure_is_named() -> None:
    data = TensorDataset(torch.arange(8))
    shuffled = DataLoader(data, 2, sampler=RandomSampler(data))
    assert sample_order.of_loader(shuffled) is None
    assert sample_order.of_loader([1, 2, 3]) is None
    with pytest.raises(ResumeRefused, match="DistributedSampler"):
        sample_order.continue_order(None, 2, loader(8, 2, 0, 2))


def test_another_data_set_is_refused() -> None:
    order = sample_order.of_loader(loader(8, 2, 0, 2))
    assert order is not None
    with pytest.raises(ResumeRefused, match="9 samples and had 8"):
        sample_order.continue_order(order.state_dict(), 1, loader(9, 2, 0, 2))


def test_a_pass_that_was_resized_goes_on_by_sample_on_the_same_ranks() -> None:
    """Interrupted again on the new ranks: the user's own loader would start in the wrong place."""
    first = DataPosition()
    _, one = first.begin(loader(24, 2, 0, 2))
    assert one is not None
    source = first.open(one)
    for _ in range(3):
        next(source)
    one.given = 3
    second = DataPosition()
    second.resume(first.state_dict(), lambda: None, resized=True)
    _, one = second.begin(loader(24, 1, 0, 2))
    assert one is not None
    source = second.open(one)
    expected = [next(source), *source]
    one.given = 1
    third = DataPosition()
    third.resume(second.state_dict(), lambda: None)
    _, one = third.begin(loader(24, 1, 0, 2))
    assert one is not None
    rest = list(third.open(one))
    assert len(expected) == 6
    assert [x.tolist() for (x,) in rest] == [x.tolist() for (x,) in expected[1:]]
