"""Ranks on CUDA: two on one device over gloo, one alone over NCCL, which wants a device each."""

from __future__ import annotations

import pytest
import torch
from support.rank_processes import run_ranks
from support.rank_trainings import Plan, train_on_cuda, train_over_nccl
from support.trainings import assert_same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FAULTS = {24: (1, "loss"), 26: (0, "backward"), 27: (1, "spike"), 30: (0, "only the loss")}


@pytest.mark.parametrize("optimizer", ["fused", "Adam"])
def test_held_on_all_ranks(optimizer: str) -> None:
    plan = Plan(steps=40, optimizer=optimizer, faults=FAULTS)
    never = plan.but(guarded=False, faults={}, without=frozenset(FAULTS))
    held, expected = run_ranks(train_on_cuda, 2, plan), run_ranks(train_on_cuda, 2, never)
    for one, other in zip(held, expected, strict=True):
        assert [action["step"] for action in one.actions] == list(FAULTS)
        assert_same(other.state, one.state)
        for name, weight in held[0].whole.items():
            assert weight.equal(one.whole[name])


def test_a_healthy_run_is_left_as_it_is() -> None:
    plan = Plan(steps=30, optimizer="fused")
    plain = run_ranks(train_on_cuda, 2, plan.but(guarded=False))
    for one, other in zip(run_ranks(train_on_cuda, 2, plan), plain, strict=True):
        assert_same(other.state, one.state)


def test_the_reduction_waits_for_nothing() -> None:
    """Under a mode in which torch raises when the host waits for the device."""
    (actions,) = run_ranks(train_over_nccl, 1, 40, {20, 25})
    assert actions == [20, 25]
