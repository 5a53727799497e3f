"""Ranks whose verdict never leaves the device before the step, and whose hosts learn it late."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paired_trainings import steps_of
from support.rank_processes import run_ranks
from support.rank_trainings import (
    Plan,
    as_on_a_device,
    look_at_findings_on_one_rank,
    poison_a_weight,
    train,
    train_until_asked_to_leave,
    train_until_lost,
    train_with_defect,
    train_with_two_defects,
)
from support.trainings import assert_same, skip_or_halt

from headway import Snapshots
from headway.guard.measure.step_record import LAG

FAULTS = {24: (1, "loss"), 26: (0, "backward"), 27: (1, "spike"), 30: (0, "only the loss")}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.slow
def test_held_by_the_kernel_on_all_ranks(kind: str, tmp_path: Path) -> None:
    plan = Plan(kind=kind, steps=40, optimizer="fused", faults=FAULTS, guard={"run_dir": tmp_path})
    plan = plan.but(each=look_at_findings_on_one_rank)
    never = plan.but(guarded=False, faults={}, without=frozenset(FAULTS), each=None)
    held, expected = run_ranks(as_on_a_device, 2, train, plan), run_ranks(train, 2, never)
    for one, other in zip(held, expected, strict=True):
        assert [action["step"] for action in one.actions] == list(FAULTS)
        assert_same(other.state, one.state)
    for record in steps_of(tmp_path):
        if record.rank == 0 and record.step in FAULTS:
            rank, fault = FAULTS[record.step]
            flags = dict(record.columns["rank/nonfinite"].items())
            assert flags == {at: float(at == rank and fault != "spike") for at in (0, 1)}


def test_max_norm_in_the_kernel() -> None:
    plan = Plan(steps=12, optimizer="SGD fused", guard={"max_norm": 0.3})
    ours = run_ranks(as_on_a_device, 2, train, plan)
    theirs = run_ranks(train, 2, plan.but(guarded=False, clip=0.3))
    for one, other in zip(ours, theirs, strict=True):
        for name, weight in other.whole.items():
            assert one.whole[name] == pytest.approx(weight, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("method", ["watch.before", "outcomes.deliver", "watch.after"])
def test_a_guard_that_fails_takes_the_others_along(method: str) -> None:
    plan = Plan(steps=16, optimizer="fused", faults=dict.fromkeys((5, 6), (0, "only the loss")))
    failed = run_ranks(as_on_a_device, 2, train_with_defect, plan, 1, method, 5)
    for outcome in failed:
        assert sum("switched" in text for text in outcome.said) == 1
        for name, weight in failed[0].whole.items():
            assert weight.equal(outcome.whole[name])


@pytest.mark.slow
def test_several_guards_fail_within_the_lag() -> None:
    plan = Plan(steps=16, optimizer="fused")
    for outcome in run_ranks(as_on_a_device, 3, train_with_two_defects, plan):
        assert sum("switched" in text for text in outcome.said) == 1


def test_asked_to_leave_all_hear_it_at_the_same_step() -> None:
    plan = Plan(optimizer="fused")
    assert run_ranks(as_on_a_device, 3, train_until_asked_to_leave, plan, 2, 9) == [9 + LAG] * 3


def test_halted_at_the_same_step_whoever_looked_before() -> None:
    """`guard.findings` on one rank must not make it know, and stop, earlier than the others."""
    faults = dict.fromkeys(range(8, 30), (1, "loss"))
    plan = Plan(optimizer="fused", faults=faults, each=look_at_findings_on_one_rank)
    plan = plan.but(guard={"policy": skip_or_halt(skips_in_a_row=3)})
    ends = run_ranks(as_on_a_device, 2, train_until_lost, plan, -1, -1)
    assert [name for name, _, _ in ends] == ["TrainingHalted"] * 2
    assert ends[0][2] == ends[1][2]


def test_a_poisoned_weight_is_everybodys_business() -> None:
    plan = Plan(optimizer="fused", each=poison_a_weight, guard={"snapshots": Snapshots(every=0)})
    ends = run_ranks(as_on_a_device, 2, train_until_lost, plan, -1, -1)
    for name, message, step in ends:
        assert name == "TrainingHalted"
        assert "rank 1" in message
        assert step == ends[0][2]
