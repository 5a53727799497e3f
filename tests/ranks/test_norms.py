"""The norm over all ranks: what clips, what is recorded, whoever holds the pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.paired_trainings import column_by_name, headers_of, steps_of
from support.rank_processes import run_ranks
from support.rank_trainings import Plan, run_all, train
from support.torch_versions import AVERAGES_SHARDS
from support.trainings import assert_same

KINDS = {2: ("ddp", "fsdp", "mixed"), 4: ("hsdp", "fsdp")}
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.slow
def test_max_norm_clips_as_clip_grad_norm_does(size: int, tmp_path: Path) -> None:
    """Replicas to the last bit. Pieces to rounding: torch adds up tensor by tensor over the ranks,
    the guard rank by rank over its tensors."""
    kinds = [kind for kind in KINDS[size] if kind != "mixed"]  # torch mixes no DTensors in
    ours = [
        Plan(
            kind=kind,
            steps=12,
            optimizer="SGD",
            guard={"max_norm": 0.3, "run_dir": tmp_path / kind},
        )
        for kind in kinds
    ]
    theirs = [plan.but(guarded=False, clip=0.3, guard={}) for plan in ours]
    for results in run_ranks(run_all, size, [(train, plan) for plan in (*ours, *theirs)]):
        for at, kind in enumerate(kinds):
            clipped, expected = results[at], results[at + len(kinds)]
            if kind == "ddp":
                assert_same(expected.state, clipped.state)
            for name, weight in expected.whole.items():
                torch.testing.assert_close(clipped.whole[name], weight, rtol=1e-5, atol=1e-7)
    for kind, outcome in zip(kinds, results[len(kinds) :], strict=True):
        recorded = [r.values["grad_norm"] for r in steps_of(tmp_path / kind) if r.rank == 0]
        assert recorded == pytest.approx(outcome.norms, rel=1e-5)


@pytest.mark.skipif(not AVERAGES_SHARDS, reason="this torch adds up gradients over gloo")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.slow
def test_norms_are_those_of_the_whole_model(size: int, tmp_path: Path) -> None:
    """Sharded, replicated or both: the numbers are those of plain data parallelism."""
    plans = {
        kind: Plan(kind=kind, steps=23, optimizer="SGD", guard={"run_dir": tmp_path / kind})
        for kind in ("ddp", *KINDS[size])
    }
    run_ranks(run_all, size, [(train, plan) for plan in plans.values()])
    expected = told(tmp_path / "ddp")
    for kind in KINDS[size]:
        found = told(tmp_path / kind)
        assert found.keys() == expected.keys()
        for key, number in expected.items():
            assert found[key] == pytest.approx(number, rel=1e-3, abs=1e-6), (kind, key)


def told(run_dir: Path) -> dict[tuple[int, str, str], float]:
    """Scalars by step, and columns by name; sizes of updates at the sample they belong to."""
    header = headers_of(run_dir)[-1]
    found = {}
    for record in steps_of(run_dir):
        if record.rank:
            continue
        found[record.step, "grad_norm", ""] = record.values["grad_norm"]
        found[record.step, "loss", ""] = record.values["loss"]
        for name in ("param/grad_norm", "param/weight_norm", "param/update_ratio"):
            if name in record.columns:
                for tensor, number in column_by_name(record, name, header).items():
                    found[record.step // 10, name, tensor] = number
    return found


@pytest.mark.slow
def test_what_the_user_clips_by_is_recorded_for_each_rank(tmp_path: Path) -> None:
    plans = [
        Plan(kind=kind, steps=11, clip=0.2, guard={"run_dir": tmp_path / kind})
        for kind in ("ddp", "fsdp")
    ]
    results = run_ranks(run_all, 2, [(train, plan) for plan in plans])[0]
    for plan, outcome in zip(plans, results, strict=True):
        records = [r for r in steps_of(plan.guard["run_dir"]) if r.rank == 0]
        for at in (0, 10):
            norm = outcome.norms[at]
            column = records[at].columns["rank/clip_norm"]
            assert dict(column.items()) == pytest.approx({0: norm, 1: norm}, rel=1e-5)
            assert records[at].values["grad_norm"] == pytest.approx(norm, rel=1e-5)
            assert records[at].values["clip_coef"] == pytest.approx(0.2 / norm, rel=1e-4)
