"""When a rank cannot go on as the others do: it dies, its guard fails, it is asked to leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.rank_processes import run_ranks
from support.rank_trainings import (
    Outcome,
    Plan,
    poison_a_weight,
    train,
    train_until_asked_to_leave,
    train_until_lost,
    train_with_defect,
    train_with_two_defects,
)
from support.trainings import assert_same

from headway import Snapshots
from headway.guard.endings.lost_rank import is_lost_connection
from headway.torch_adapters.process_groups.local_gradients import LOST_IN_BACKWARD
from headway.torch_adapters.process_groups.rank_agreement import first_sentence


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.slow
def test_a_rank_that_dies_is_missed(kind: str) -> None:
    results = run_ranks(train_until_lost, 3, Plan(kind=kind), 1, 7, timeout=20.0, lone=True)
    assert results[1] is None
    for rank in (0, 2):
        name, message, step = results[rank]
        assert name == "RankLost"
        assert f"rank {rank} of 3 lost the others at step 7" in message
        assert step == 7, "nobody went on alone"


@pytest.mark.slow
def test_a_rank_that_hangs_is_missed_when_the_groups_time_is_up() -> None:
    results = run_ranks(train_until_lost, 2, Plan(), 1, 7, True, timeout=3.0, lone=True)
    assert results[1] is None
    assert results[0][0] == "RankLost"
    assert "at step 7" in results[0][1]


DEFECTS = [
    ("watch.before", 5),
    ("watch.after", 5),
    ("ballot.cast", 5),
    ("machine.backward_begins", 5),
    ("outcomes.deliver", 5),
    ("recorder.step", 5),
]


@pytest.mark.parametrize(("method", "after"), DEFECTS)
def test_a_guard_that_fails_takes_the_others_along(method: str, after: int) -> None:
    """No rank waits for it, none acts alone: from then on all train as if unguarded."""
    faults = dict.fromkeys((5, 6), (0, "only the loss"))
    plan = Plan(steps=16, faults=faults, guard={"max_norm": 0.3})
    guarded = run_ranks(train_with_defect, 2, plan, 1, method, after)
    assert_all_let_go(guarded)
    # Clipped by all up to some step, by none from there on.
    assert_replicas(guarded)


def test_a_guard_that_fails_while_it_holds_back(tmp_path: Path) -> None:
    plan = Plan(steps=16, faults={6: (0, "loss"), 11: (1, "spike")})
    never = plan.but(guarded=False, faults={11: (1, "spike")}, without=frozenset({6}))
    held = run_ranks(train_with_defect, 2, plan, 1, "brake.skip", 0)
    expected = run_ranks(train, 2, never)
    assert_all_let_go(held)
    for one, other in zip(held, expected, strict=True):
        assert_same(other.state, one.state)


@pytest.mark.slow
def test_several_guards_fail_at_different_steps() -> None:
    assert_all_let_go(run_ranks(train_with_two_defects, 3, Plan(steps=16)))


def assert_all_let_go(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert sum("switched" in text for text in outcome.said) == 1, outcome.said


def assert_replicas(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        for name, weight in outcomes[0].whole.items():
            assert torch.equal(weight, outcome.whole[name]), name


def test_asked_to_leave_all_hear_it_at_the_same_step() -> None:
    results = run_ranks(train_until_asked_to_leave, 3, Plan(), 2, 9)
    assert results == [9, 9, 9]


@pytest.mark.slow
def test_a_poisoned_weight_on_one_rank_is_everybodys_business(tmp_path: Path) -> None:
    """One rank finds it; what is done about it, all do, at the same step."""
    plans = [
        Plan(
            kind=kind,
            each=poison_a_weight,
            guard={"run_dir": tmp_path / kind, "snapshots": Snapshots(every=0)},
        )
        for kind in ("ddp", "fsdp")
    ]
    for plan in plans:
        for name, message, step in run_ranks(train_until_lost, 2, plan, -1, -1):
            assert name == "TrainingHalted"
            assert "rank 1" in message
            assert step == 10


@pytest.mark.slow
def test_ranks_that_train_for_themselves_keep_their_snapshots_apart(tmp_path: Path) -> None:
    guard = {"run_dir": tmp_path, "snapshots": Snapshots(every=4, disk_share=1.0)}
    plan = Plan(kind="local", guard=guard)
    outcomes = run_ranks(train, 2, plan)
    assert sorted(path.name for path in tmp_path.glob("snapshots*")) == [
        "snapshots",
        "snapshots.rank1",
    ]
    again = run_ranks(train, 2, plan.but(resume=True))
    for one, other in zip(outcomes, again, strict=True):
        assert_same(one.state, other.state)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "[/src/gloo/pair.cc:537] Read error [127.0.0.1]:23977: Connection reset by peer. This "
            "is typically caused by a remote worker hanging. GLHF!",
            "Read error [127.0.0.1]:23977: Connection reset by peer",
        ),
        ("NCCL error: timed out\nLast error:\nsomething", "NCCL error: timed out"),
        ("", "RuntimeError"),
    ],
)
def test_of_an_error_of_the_backend_the_first_sentence_is_shown(said: str, shown: str) -> None:
    assert first_sentence(RuntimeError(said)) == shown


@pytest.mark.parametrize("said", ["Connection reset by peer", "Connection closed by peer [::1]:1"])
def test_the_error_of_the_guards_own_reduction_is_one_of_a_lost_rank(said: str) -> None:
    """Torch raises what a communication hook raised as a RuntimeError of its own."""
    assert is_lost_connection(RuntimeError(f"{LOST_IN_BACKWARD}: {said}. Check the others"))
    assert not is_lost_connection(RuntimeError(f"cannot read the data: {said}"))
