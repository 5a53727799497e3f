"""Trainings of every form on several ranks: scalers, closures, several optimizers, no wrapper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.paired_trainings import steps_of
from support.rank_processes import run_ranks
from support.rank_trainings import (
    Plan,
    refusals,
    train,
    train_apart,
    train_by_closure,
    train_flat,
    train_idly,
    train_scaled,
    train_two,
    train_unevenly,
    train_with_group,
    train_wrapped_late,
)
from support.resumable_trainings import Job, run_job
from support.trainings import assert_same

from headway import Policy


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_scaler_that_skips_skips_on_all_ranks(kind: str) -> None:
    plan = Plan(kind=kind, steps=14)
    guarded = run_ranks(train_scaled, 2, plan)
    plain = run_ranks(train_scaled, 2, plan.but(guarded=False))
    for (ours, scales), (theirs, expected) in zip(guarded, plain, strict=True):
        assert scales == expected
        assert len(set(scales)) > 1, "it had to search"
        assert not ours.actions, "an overflow of the scale is the scaler's business"
        assert_same(theirs.state, ours.state)
        extra = np.diff(ours.collectives) - np.diff(theirs.collectives)
        assert set(extra) == {1}, "skipped or not, every step is agreed on once"


@pytest.mark.slow
def test_an_overflow_on_one_rank_only(tmp_path: Path) -> None:
    """Its scaler skips the step; the others, whose scalers see nothing, hold it back too."""
    plan = Plan(kind="local", steps=9, faults={5: (1, "backward")}, guard={"run_dir": tmp_path})
    run_ranks(train_scaled, 2, plan, "", 2.0**10)
    for record in steps_of(tmp_path):
        assert record.held == (record.step == 5)
        assert ("scaler_skipped" in record.values) == (record.step == 5)
    # With gradients of their own, ranks differ; what counts is that neither moved at step 5.
    never = plan.but(guarded=False, faults={}, guard={})
    (moved, _), _ = run_ranks(train_scaled, 2, plan.but(faults={}, guard={}), "", 2.0**10)
    (held, _), _ = run_ranks(train_scaled, 2, plan.but(guard={}), "", 2.0**10)
    (plain, _), _ = run_ranks(train_scaled, 2, never, "", 2.0**10)
    assert_same(plain.state, moved.state)
    assert not held.whole["head.weight"].equal(moved.whole["head.weight"])


@pytest.mark.parametrize("defect", ["backward_begins", "scaler_stepped"])
def test_a_failed_guard_and_a_scaler_that_skips(defect: str) -> None:
    plan = Plan(steps=14)
    failed = run_ranks(train_scaled, 2, plan, defect)
    plain = run_ranks(train_scaled, 2, plan.but(guarded=False))
    for (ours, scales), (theirs, expected) in zip(failed, plain, strict=True):
        assert scales == expected
        assert_same(theirs.state, ours.state)
        assert sum("switched" in text for text in ours.said) == 1


def test_optimizers_with_closures() -> None:
    plan = Plan(steps=8, faults={3: (1, "loss"), 5: (0, "backward")})
    never = plan.but(guarded=False, faults={}, without=frozenset({3, 5}))
    expected = run_ranks(train_by_closure, 2, never)
    for ours, theirs in zip(run_ranks(train_by_closure, 2, plan), expected, strict=True):
        assert [action["step"] for action in ours.actions] == [3, 5]
        assert_same(theirs.state, ours.state)


@pytest.mark.slow
def test_several_optimizers(tmp_path: Path) -> None:
    plan = Plan(steps=12, faults={4: (1, "backward"), 8: (0, "loss")}, guard={"run_dir": tmp_path})
    (*actions, whole), (*others, other) = run_ranks(train_two, 2, plan)
    assert actions == others
    assert [action["step"] for action in actions] == [4, 8]
    for one, two in zip(whole["whole"], other["whole"], strict=True):
        assert torch.equal(one, two)
        assert torch.isfinite(one).all()
    records = {record.step: record for record in steps_of(tmp_path) if record.rank == 0}
    assert dict(records[4].columns["rank/nonfinite"].items()) == {0: 0.0, 1: 1.0}
    assert dict(records[8].columns["rank/nonfinite"].items()) == {0: 1.0, 1: 0.0}


def test_models_of_their_own_are_not_followed(tmp_path: Path) -> None:
    """A process group exists, but nobody shares gradients: ranks may even differ in length."""
    plan = Plan(faults={6: (1, "loss")}, guard={"run_dir": tmp_path})
    (first, exchanged), (second, _) = run_ranks(train_apart, 2, plan, [9, 14])
    assert exchanged == 0
    assert not first.actions
    assert [action["step"] for action in second.actions] == [6]
    steps = steps_of(tmp_path)
    assert [sum(record.rank == rank for record in steps) for rank in (0, 1)] == [9, 14]
    assert not any("rank/loss" in record.columns for record in steps)


@pytest.mark.slow
def test_a_group_given_by_hand() -> None:
    plan = Plan(steps=12, faults={4: (1, "only the loss"), 8: (0, "backward")})
    one, other = run_ranks(train_with_group, 2, plan)
    assert one.actions == other.actions
    assert [action["step"] for action in one.actions] == [4, 8]
    for name, weight in one.whole.items():
        assert torch.equal(weight, other.whole[name])


def test_a_group_without_this_rank_is_refused() -> None:
    (said,), _ = run_ranks(refusals, 2)
    assert "not a member" in said


def test_a_wrapper_that_comes_too_late_is_named() -> None:
    for said in run_ranks(train_wrapped_late, 2):
        assert [text for text in said if "Wrap it first" in text]


def test_uneven_inputs_switch_the_guard_off() -> None:
    """`model.join()` lets ranks take different numbers of steps: there is nothing to agree on."""
    for said, weights in run_ranks(train_unevenly, 2):
        assert [text for text in said if "model.join()" in text]
        assert all(bool(torch.isfinite(weight).all()) for weight in weights)


@pytest.mark.slow
def test_a_rank_without_gradients_takes_part(tmp_path: Path) -> None:
    plan = Plan(steps=16, faults={12: (0, "only the loss")}, guard={"run_dir": tmp_path})
    one, other = run_ranks(train_idly, 2, plan)
    assert one.actions == other.actions
    assert [action["step"] for action in one.actions] == [12]
    for rank in (0, 1):
        steps = [record.step for record in steps_of(tmp_path) if record.rank == rank]
        assert steps == [step for step in range(16) if step not in (5, 15)], "no step at all there"


def test_flat_parameters(tmp_path: Path) -> None:
    """FullyShardedDataParallel, the first: plain tensors that are pieces all the same."""
    plan = Plan(steps=9, faults={5: (1, "loss")}, guard={"run_dir": tmp_path})
    held = run_ranks(train_flat, 2, plan)
    never = run_ranks(train_flat, 2, plan.but(guarded=False, faults={}, without=frozenset({5})))
    for (ours, _), (theirs, _) in zip(held, never, strict=True):
        assert [action["step"] for action in ours.actions] == [5]
        assert_same(theirs.state, ours.state)
    found = [r.values["grad_norm"] for r in steps_of(tmp_path) if r.rank == 0 and r.step != 5]
    assert found == pytest.approx(never[0][1], rel=1e-5)


@pytest.mark.slow
def test_what_a_communication_hook_remembers_is_put_back(tmp_path: Path) -> None:
    """PowerSGD's error feedback: one bad step does not spoil all later ones."""
    bad = run_job(2, Job("powersgd", tmp_path / "bad", fault="nan"))
    never = run_job(2, Job("powersgd", tmp_path / "never", fault="skip"))
    for one, other in zip(bad, never, strict=True):
        assert one is not None
        assert other is not None
        assert one.held == [5]
        assert_same(other.state, one.state)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline", "tensor"])
def test_parts_of_one_model_read_the_same_batches_on_purpose(strategy: str, tmp_path: Path) -> None:
    for rank in run_job(2, Job(strategy, tmp_path / "run", epochs=5)):
        assert rank is not None
        assert not rank.codes & {"HD601", "HD603"}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.slow
def test_one_small_reduction_per_step_and_nothing_else(kind: str) -> None:
    plan = Plan(kind=kind, steps=24, faults={9: (1, "loss"), 15: (0, "backward")})
    plan = plan.but(guard={"policy": Policy(replay=False)})
    guarded = run_ranks(train, 2, plan)[0].collectives
    plain = run_ranks(train, 2, plan.but(guarded=False))[0].collectives
    assert set(np.diff(guarded) - np.diff(plain)) == {1}, "bad steps and samples included"
    # Two more to agree on the start of the record and on the room for snapshots; the
    # room that each rank has found is exchanged where it differs.
    assert guarded[0] - plain[0] in (3, 4)
