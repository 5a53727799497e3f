"""What is written down about many ranks, and by whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paired_trainings import headers_of, steps_of
from support.rank_processes import run_ranks
from support.rank_trainings import Plan, nudge_a_weight, train, train_same_data

from headway.core.records import StepRecord
from headway.engine import Engine
from headway.rundir.run_reader import RunDir


def records(run_dir: Path, rank: int = 0) -> dict[int, StepRecord]:
    return {record.step: record for record in steps_of(run_dir) if record.rank == rank}


def test_the_first_rank_writes_down_what_all_measured(tmp_path: Path) -> None:
    outcomes = run_ranks(train, 2, Plan(steps=12, guard={"run_dir": tmp_path}))
    header = headers_of(tmp_path)[0]
    assert header.world_size == 2
    assert tuple(header.names("rank")) == ("0", "1")
    told = records(tmp_path)
    for step in (0, 10):
        columns = told[step].columns
        losses = dict(columns["rank/loss"].items())
        assert losses == pytest.approx({0: outcomes[0].losses[step], 1: outcomes[1].losses[step]})
        assert told[step].values["loss"] == pytest.approx(sum(losses.values()) / 2)
        assert len(columns["rank/grad_norm"].values) == 2
        assert len(set(columns["rank/batch_hash"].values)) == 2
    assert all(seconds > 0 for seconds in told[10].columns["rank/step_time_s"].values)
    assert "rank/loss" not in told[5].columns, "now and then is enough"
    assert not any("rank/loss" in record.columns for record in records(tmp_path, 1).values())


@pytest.mark.slow
def test_the_numbers_of_a_step_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    run_ranks(train, 2, Plan(kind="fsdp", steps=12, clip=0.5, guard={"run_dir": tmp_path}))
    first, second = records(tmp_path, 0), records(tmp_path, 1)
    for step, record in first.items():
        for name in ("loss", "grad_norm", "clip_coef", "lr"):
            assert record.values[name] == second[step].values[name], (step, name)
        assert record.columns.get("param/grad_norm") == second[step].columns.get("param/grad_norm")


@pytest.mark.slow
def test_weights_that_should_be_equal_are_compared(tmp_path: Path) -> None:
    plan = Plan(steps=102, each=nudge_a_weight, guard={"run_dir": tmp_path})
    run_ranks(train, 2, plan)
    told = records(tmp_path)
    before, after = (told[step].columns["rank/weights_hash"].values for step in (0, 100))
    assert before[0] == before[1]
    assert after[0] != after[1], "one bit in one weight"
    assert "rank/weights_hash" not in told[50].columns


@pytest.mark.slow
def test_pieces_of_weights_are_not_compared(tmp_path: Path) -> None:
    run_ranks(train, 2, Plan(kind="fsdp", steps=3, guard={"run_dir": tmp_path}))
    assert "rank/weights_hash" not in records(tmp_path)[0].columns


def test_ranks_that_read_the_same_data_show(tmp_path: Path) -> None:
    run_ranks(train_same_data, 2, Plan(steps=2, guard={"run_dir": tmp_path}))
    one, other = records(tmp_path)[0].columns["rank/batch_hash"].values
    assert one == other


@pytest.mark.slow
def test_segments_are_agreed_on(tmp_path: Path) -> None:
    """One rank's file was lost or is longer: all write the same, new segment."""
    run_ranks(train, 2, Plan(steps=3, guard={"run_dir": tmp_path}))
    (tmp_path / "steps.rank1.jsonl").unlink()
    (tmp_path / "events.rank1.jsonl").unlink()
    run_ranks(train, 2, Plan(steps=3, guard={"run_dir": tmp_path}))
    assert {record.segment for record in records(tmp_path, 0).values()} == {1}
    assert {record.segment for record in records(tmp_path, 1).values()} == {1}


@pytest.mark.slow
def test_what_all_ranks_know_is_logged_by_one(tmp_path: Path) -> None:
    plan = Plan(steps=8, faults={5: (1, "loss")}, guard={"run_dir": tmp_path})
    outcomes = run_ranks(train, 2, plan)
    for code, rank in (("HD602", 0), ("HD201", 0), ("HD101", 0)):
        logged = [sum(f" {code} " in text for text in one.said) for one in outcomes]
        assert logged == [int(rank == 0), int(rank == 1)], code
    assert all("HD602" in [code for code, _, _ in one.findings] for one in outcomes)


@pytest.mark.slow
def test_a_post_mortem_counts_every_step_once(tmp_path: Path) -> None:
    outcome = run_ranks(
        train, 2, Plan(steps=30, faults={25: (1, "loss")}, guard={"run_dir": tmp_path})
    )
    engine = Engine(strict=True)
    found = [(f.code, f.step) for f in engine.run(RunDir(tmp_path).records())]
    assert found == [(code, step) for code, step, _ in outcome[0].findings]
    assert [code for code, _ in found] == ["HD101", "HD201", "HD602"]
