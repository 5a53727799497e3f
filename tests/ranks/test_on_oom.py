"""One rank runs out of memory: a split needs no agreement, a skipped step is skipped by all."""

from __future__ import annotations

import pytest
import torch
from support.oom_ranks import train
from support.rank_processes import run_ranks


@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.slow), "backward"])
@pytest.mark.slow
def test_one_rank_splits_and_all_have_the_same_weights(where: str) -> None:
    whole = run_ranks(train, 2, "split", "", False)
    split = run_ranks(train, 2, "split", where, False)
    assert split[0]["moved"] == split[1]["moved"] == [True] * 4
    assert (split[0]["found"], split[1]["found"]) == ([], ["split"])
    for one, other, expected in zip(
        split[0]["weights"], split[1]["weights"], whole[0]["weights"], strict=True
    ):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("where", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_a_step_that_one_rank_skips_is_skipped_by_all(where: str) -> None:
    outcomes = run_ranks(train, 2, "split", where, True)
    assert outcomes[0]["moved"] == outcomes[1]["moved"] == [True, False, False, True]
    assert outcomes[1]["found"][0] == "skip"
    for one, other in zip(*(outcome["weights"] for outcome in outcomes), strict=True):
        assert torch.equal(one, other)
