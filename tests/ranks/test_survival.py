"""Snapshots, roll-back and resume with several ranks: all at the same step, to the same state."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.paired_trainings import all_finite, events_of
from support.rank_processes import run_ranks
from support.rank_trainings import Outcome, Plan, poison_a_weight, train
from support.snapshot_folders import complete_snapshots
from support.trainings import assert_same

from headway import Snapshots

KINDS = ["ddp", "fsdp"]
OFTEN = Snapshots(every=4, disk_share=1.0)


def poison_later(rank: int, step: int, model: Any, guard: Any) -> None:
    """Rank 1's own copy or piece of a weight goes bad at step 20."""
    poison_a_weight(rank, step - 12, model, guard)


def die(at: int, rank: int, step: int, model: Any, guard: Any) -> None:
    if step == at:
        guard._session.recovery.snapshotter.wait()
        os._exit(1)


def die_at(step: int) -> Any:
    return partial(die, step)


def leave_at_21(rank: int, step: int, model: Any, guard: Any) -> None:
    if step == 21 and rank == 1:
        guard._session.recovery.preemption.asked = 15


def resumed_at(run_dir: Path) -> int:
    """Where the ranks took up the run: all at the same step."""
    (steps,) = {event.data["steps"] for event in events_of(run_dir, "resumed")}
    return int(steps)


def rungs(outcome: Outcome) -> list[tuple[str, int]]:
    return [(action["action"], action["step"]) for action in outcome.actions]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_weight_poisoned_on_one_rank_rolls_all_of_them_back(kind: str, size: int) -> None:
    plan = Plan(kind=kind, each=poison_later, guard={"snapshots": Snapshots(every=4)})
    outcomes = run_ranks(train, size, plan)
    for outcome in outcomes:
        assert rungs(outcome) == rungs(outcomes[0])
        assert [name for name, _ in rungs(outcome)].count("roll-back") == 1
        assert all_finite(outcome.state)
        assert_same(outcomes[0].whole, outcome.whole)


@pytest.mark.parametrize("kind", [*KINDS, pytest.param("hsdp", marks=pytest.mark.slow)])
def test_a_run_that_died_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    size = 4 if kind == "hsdp" else 2
    plan = Plan(kind=kind, guard={"run_dir": tmp_path, "snapshots": OFTEN})
    calm = run_ranks(train, size, plan.but(guard={"snapshots": OFTEN}))
    assert run_ranks(train, size, plan.but(each=die_at(21)), lone=True) == [None] * size
    resumed = run_ranks(train, size, plan.but(resume=True))
    steps = resumed_at(tmp_path)
    assert steps >= 16
    for one, other in zip(calm, resumed, strict=True):
        assert_same(one.state, other.state)
        assert one.losses[-len(other.losses) :] == other.losses


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_asked_to_leave_nothing_is_lost(kind: str, tmp_path: Path) -> None:
    plan = Plan(kind=kind, guard={"run_dir": tmp_path, "snapshots": Snapshots(every=100)})
    calm = run_ranks(train, 2, plan.but(guard={}))
    with pytest.raises(Exception, match="SystemExit: 143"):
        run_ranks(train, 2, plan.but(each=leave_at_21))
    resumed = run_ranks(train, 2, plan.but(resume=True))
    steps = resumed_at(tmp_path)
    assert steps == 23, "told with step 22, and gone after it"
    for one, other in zip(calm, resumed, strict=True):
        assert_same(one.state, other.state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_is_torn_on_one_rank_is_passed_over_on_all(kind: str, tmp_path: Path) -> None:
    plan = Plan(kind=kind, steps=30, guard={"run_dir": tmp_path, "snapshots": OFTEN})
    calm = run_ranks(train, 2, plan)
    homes = sorted((tmp_path / "snapshots").iterdir(), key=_number)
    part = homes[-1] / "dcp" / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:-1])
    resumed = run_ranks(train, 2, plan.but(resume=True))
    steps = resumed_at(tmp_path)
    assert f"step{steps}" == homes[-2].name.split("-")[1]
    for one, other in zip(calm, resumed, strict=True):
        assert_same(one.state, other.state)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [{}, {"static_graph": True}], ids=["plain", "static graph"])
def test_the_buckets_of_before_are_used_again(wrap: dict[str, Any], tmp_path: Path) -> None:
    """With more than two ranks they decide the last bits of the first step."""
    plan = Plan(steps=14, wrap=wrap, guard={"run_dir": tmp_path, "snapshots": OFTEN})
    calm = run_ranks(train, 3, plan)
    for number, home in enumerate(sorted((tmp_path / "snapshots").iterdir(), key=_number)):
        if number:
            shutil.rmtree(home)  # so that steps are left
    resumed = run_ranks(train, 3, plan.but(resume=True))
    assert resumed_at(tmp_path) < 12
    for one, other in zip(calm, resumed, strict=True):
        assert_same(one.state, other.state)
        assert one.losses[-len(other.losses) :] == other.losses
        assert not [text for text in other.said if "buckets" in text]


@pytest.mark.slow
def test_buckets_that_cannot_be_restored_are_told(tmp_path: Path) -> None:
    """A communication hook in C++ cannot be read, so the reducer is not replaced."""
    plan = Plan(steps=14, wrap={"static_graph": True, "hook": "built-in"})
    plan = plan.but(guard={"run_dir": tmp_path, "snapshots": OFTEN})
    run_ranks(train, 3, plan)
    resumed = run_ranks(train, 3, plan.but(resume=True))
    told = [text for outcome in resumed for text in outcome.said if "its buckets" in text]
    assert len(told) == 1, "by rank 0, once"
    assert "a built-in communication hook" in told[0]


@pytest.mark.slow
def test_no_snapshot_is_written_before_the_buckets_are_known(tmp_path: Path) -> None:
    """It could not be resumed bit for bit; the steps are trained again, with the same bits."""
    every = Snapshots(every=1, disk_share=1.0)
    plan = Plan(steps=12, guard={"run_dir": tmp_path / "run", "snapshots": every})
    calm = run_ranks(train, 3, plan.but(guard={}))
    assert run_ranks(train, 3, plan.but(each=die_at(2)), lone=True) == [None] * 3
    assert not complete_snapshots(tmp_path / "run" / "snapshots")
    assert run_ranks(train, 3, plan.but(each=die_at(7)), lone=True) == [None] * 3
    assert complete_snapshots(tmp_path / "run" / "snapshots")
    resumed = run_ranks(train, 3, plan.but(resume=True))
    assert resumed_at(tmp_path / "run") > 0
    for one, other in zip(calm, resumed, strict=True):
        assert_same(one.state, other.state)


def _number(home: Path) -> int:
    return int(home.name.split("-")[0])
