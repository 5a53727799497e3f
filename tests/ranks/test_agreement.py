"""A fault on one rank: the same verdict on all, no trace of it, and the rank is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.grids import all_but
from support.paired_trainings import steps_of
from support.rank_processes import run_ranks
from support.rank_trainings import (
    Outcome,
    Plan,
    clip_badly,
    halved,
    run_all,
    spoil_a_gradient,
    train,
)
from support.trainings import assert_same

from headway.core.records import StepRecord
from headway.errors import RankLost
from headway.torch_adapters.process_groups import local_gradients
from headway.torch_adapters.process_groups.rank_agreement import HostGroup

FAULTS = ("loss", "backward", "input", "only the loss", "spike")


def planted(
    size: int, kind: str, faults: dict[int, tuple[int, str]], folder: Path, **more: Any
) -> Plan:
    return Plan(
        kind=kind, steps=40, faults=faults, guard={"run_dir": folder / f"{kind}{size}"}, **more
    )


def both(size: int, plan: Plan) -> list[tuple[Outcome, Outcome]]:
    """Per rank: with the faults under a guard, and without the batches that met them."""
    never = plan.but(guarded=False, faults={}, without=frozenset(plan.faults), guard={})
    return [tuple(pair) for pair in run_ranks(run_all, size, [(train, plan), (train, never)])]


def told(plan: Plan, rank: int = 0) -> dict[int, StepRecord]:
    """What a rank has written down, by step."""
    records = steps_of(plan.guard["run_dir"])
    return {record.step: record for record in records if record.rank == rank}


def assert_held(plan: Plan, pairs: list[tuple[Outcome, Outcome]]) -> None:
    first = pairs[0][0]
    assert [action["step"] for action in first.actions] == list(plan.faults)
    for guarded, never in pairs:
        assert guarded.actions == first.actions, "no rank decides alone"
        assert_same(never.state, guarded.state)
        for name, weight in first.whole.items():
            assert weight.equal(guarded.whole[name]), f"{name} differs between ranks"


def assert_named(plan: Plan, size: int) -> None:
    records = told(plan)
    others = told(plan, size - 1)
    for step, (rank, fault) in plan.faults.items():
        record = records[step]
        assert record.held
        assert others[step].held
        flags = dict(record.columns["rank/nonfinite"].items())
        if fault == "spike":
            norms = dict(record.columns["rank/grad_norm"].items())
            assert norms[rank] > 1000 * max(norms[other] for other in range(size) if other != rank)
            assert not any(flags.values())
        else:
            assert flags == {other: float(other == rank) for other in range(size)}, (step, fault)
            assert dict(others[step].columns["rank/nonfinite"].items()) == {rank: 1.0}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks(kind: str, tmp_path: Path) -> None:
    faults = {24 + 3 * at: (at % 2, fault) for at, fault in enumerate(FAULTS)}
    plan = planted(2, kind, faults, tmp_path)
    assert_held(plan, both(2, plan))
    assert_named(plan, 2)


@pytest.mark.parametrize(
    "wrap",
    [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 0.0001},
    ],
    ids=lambda wrap: next(iter(wrap)),
)
@pytest.mark.slow
def test_ways_to_wrap(wrap: dict[str, Any], tmp_path: Path) -> None:
    faults = {5: (1, "backward"), 9: (0, "loss"), 12: (0, "backward")}
    plan = planted(2, "ddp", faults, tmp_path, wrap=wrap).but(steps=16)
    assert_held(plan, both(2, plan))
    assert_named(plan, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hsdp", "mixed"])
def test_four_ranks(kind: str, tmp_path: Path) -> None:
    faults = {24 + 3 * at: ((at + 1) % 4, fault) for at, fault in enumerate(FAULTS)}
    plan = planted(4, kind, faults, tmp_path)
    if kind == "mixed":  # what is averaged by hand shows only in the loss which rank it was
        faults = {at: fault for at, fault in faults.items() if fault[1] in ("loss", "input")}
        plan = plan.but(faults=faults)
    assert_held(plan, both(4, plan))
    assert_named(plan, 4)


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True], ids=["at the end", "at every micro-batch"])
@pytest.mark.parametrize("at", [0, 1], ids=["first", "last"])
def test_a_fault_in_one_micro_batch(at: int, always: bool, tmp_path: Path) -> None:
    """Once it is averaged, every rank's gradients are bad: the first to have it made it."""
    faults = {5: (1, "backward"), 9: (0, "backward"), 12: (1, "loss")}
    plan = planted(2, "ddp", faults, tmp_path, accumulate=2, fault_at=at, always_reduce=always)
    assert_held(plan, both(2, plan))
    assert_named(plan, 2)


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True], ids=["at the end", "at every micro-batch"])
def test_sharded_micro_batches(always: bool, tmp_path: Path) -> None:
    """FSDP2 gathers gradients out of sight until it reduces them; their losses count all the
    same."""
    faults = {5: (1, "backward"), 9: (0, "loss")}
    plan = planted(2, "fsdp", faults, tmp_path, accumulate=2, fault_at=0, always_reduce=always)
    assert_held(plan, both(2, plan))
    assert_named(plan, 2)
    assert all(record.values["micro_batches"] == 2 for record in steps_of(plan.guard["run_dir"]))


@pytest.mark.slow
def test_the_model_inside_the_wrapper(tmp_path: Path) -> None:
    faults = {6: (1, "only the loss"), 9: (0, "backward")}
    plan = planted(2, "inner", faults, tmp_path)
    assert_held(plan, both(2, plan))
    assert_named(plan, 2)


@pytest.mark.slow
def test_a_hook_of_the_users_leaves_the_loss_to_tell(tmp_path: Path) -> None:
    plan = planted(2, "ddp", {6: (1, "loss"), 9: (1, "backward")}, tmp_path, wrap={"hook": halved})
    pairs = both(2, plan)
    assert_held(plan, pairs)
    records = told(plan)
    assert dict(records[6].columns["rank/nonfinite"].items()) == {0: 0.0, 1: 1.0}
    assert "rank/nonfinite" not in records[9].columns, "nobody can tell"
    assert sum("has its own communication hook" in text for text in pairs[0][0].said) == 1


@pytest.mark.parametrize(
    ("each", "steps"), [(spoil_a_gradient, [24, 27]), (clip_badly, [7])], ids=["spoilt", "clipped"]
)
@pytest.mark.slow
def test_a_gradient_that_goes_bad_after_the_reduction(each: Any, steps: list[int]) -> None:
    """One rank's copy only: the others would go on with theirs."""
    plan = Plan(each=each)
    never = plan.but(guarded=False, each=None, without=frozenset(steps))
    for guarded, clean in run_ranks(run_all, 2, [(train, plan), (train, never)]):
        assert [action["step"] for action in guarded.actions] == steps
        assert_same(clean.state, guarded.state)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "launch"), all_but([(2, 0), (2, 1), (4, 0)], (4, 0)))
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_fifty_times(kind: str, size: int, launch: int, tmp_path: Path) -> None:
    kinds = ("loss", "backward", "input", "only the loss")
    faults = {
        30 + 3 * at + launch: ((at * 7 + launch) % size, kinds[(at + launch) % 4])
        for at in range(50)
    }
    plan = planted(size, kind, faults, tmp_path).but(steps=200)
    assert_held(plan, both(size, plan))
    assert_named(plan, size)


def test_a_peer_that_dies_in_the_average_is_named_as_the_reason() -> None:
    """Torch adds our file and line to the error: the message says that they are not the cause."""

    class Broken:
        def value(self) -> Any:
            raise RuntimeError("\n[pair.cc:537] Connection closed by peer\nmore")

    with pytest.raises(
        RankLost, match=r"gradients were averaged: Connection closed by peer\. Check"
    ):
        local_gradients._reduced(Broken())


def meet_after_a_group_of_one(rank: int) -> list[float]:
    """What both ranks say through the group of their guards."""
    if rank == 0:
        dist.new_group([0])  # torch gives it the number that the next group would have
    everyone = HostGroup.share((0, 1), existing=False).open()
    numbers = torch.zeros(2)
    numbers[rank] = rank + 1
    dist.all_reduce(numbers, group=everyone)
    own = dist.new_group([0], use_local_synchronization=True) if rank == 0 else None
    assert (own is None) == (rank == 1), "the script's own groups are numbered as before"
    return numbers.tolist()


def test_a_group_that_the_script_makes_on_one_rank_holds_up_no_guard() -> None:
    assert run_ranks(meet_after_a_group_of_one, 2) == [[1.0, 2.0], [1.0, 2.0]]
