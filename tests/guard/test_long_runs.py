"""Long runs: the guard's own memory stays flat, and the run directory grows by so much a step."""

from __future__ import annotations

import gc
import math
import tracemalloc
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.long_runs import length
from support.paired_trainings import steps_of
from support.trainings import batches, squared_error
from torch import nn

from headway import Guard, Policy, Snapshots
from headway.guard.measure.gradient_measure import MAX_TOKENS

MEGABYTE = 1 << 20


def tiny() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-4)


def endless(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard, steps: int) -> None:
    """So many steps over the same few batches, every thousandth of them bad."""
    data = batches(16)
    for number, (x, y) in enumerate(guard(data[at % 16] for at in range(steps))):
        bad = number % 1000 == 999
        loss = (model(x) - y).pow(2).mean() * (math.nan if bad else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def look_again(guard: Guard) -> None:
    """As at every hundredth step."""
    guard._session.buffers.find_new_buffers()
    guard._session.inspection.parameters(guard.step)


def records_only(model: Any, optimizer: Any, run_dir: Path) -> Guard:
    """A guard that goes on for ever and writes no snapshots."""
    plan = Snapshots(on_disk=0)
    policy = Policy(halt=False, roll_backs=0)
    return Guard(model, optimizer, run_dir=run_dir, policy=policy, snapshots=plan)


def written(run_dir: Path) -> int:
    return sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())


def python_memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_own_memory_is_flat_over_100_000_steps(tmp_path: Path) -> None:
    model, optimizer = tiny()
    guard = Guard(model, optimizer, run_dir=tmp_path, policy=Policy(halt=False))
    levels = []
    steps = length(100_000)
    tracemalloc.start()
    try:
        for _ in range(5):
            endless(model, optimizer, guard, steps // 5)
            levels.append(python_memory())
    finally:
        tracemalloc.stop()
        guard.close()
    # What is kept at every step grows in every stretch; a library read in once, in one of them.
    assert min(after - before for before, after in pairwise(levels)) < MEGABYTE / 4
    assert len(guard.actions) == steps // 1000


@pytest.mark.slow
def test_own_memory_is_flat_over_hundreds_of_steps() -> None:
    """The same in short: 150 bytes kept at every step would show."""
    model, optimizer = tiny()
    with Guard(model, optimizer, policy=Policy(halt=False)) as guard:
        endless(model, optimizer, guard, 20)  # torch imports parts of itself when first stepped
        tracemalloc.start()
        try:
            endless(model, optimizer, guard, 400)
            warm = python_memory()
            endless(model, optimizer, guard, 400)
            grown = python_memory() - warm
        finally:
            tracemalloc.stop()
    assert grown < 60_000


def test_what_is_taken_out_of_the_model_is_let_go(tmp_path: Path) -> None:
    """A head replaced at every step, its BatchNorm too: the guard holds on to none of them."""
    model, optimizer = tiny()
    assert isinstance(model, nn.Sequential)
    heads: list[weakref.ref[nn.Module]] = []
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        look_again(guard)
        names = list(guard._session.inspection.parameter_index.names)
        for batch in guard(batches(60)):
            model[1] = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
            optimizer.param_groups[0]["params"] = list(model.parameters())
            heads += [weakref.ref(model[1]), weakref.ref(model[1][0].running_mean)]
            optimizer.zero_grad()
            squared_error(model, batch).backward()
            optimizer.step()
            look_again(guard)
        gc.collect()
        alive = [head for head in heads if head() is not None]
        grown = set(guard._session.inspection.parameter_index.names) - set(names)
        assert len(alive) <= 4, "of the last step, and those watched for being cleared"
        assert grown == {"1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias"}, "named once"
        assert len(guard._session.inspection.parameter_index.names) <= len(names) + 4 + MAX_TOKENS
        assert len(guard._session.buffers) == 6
    assert written(tmp_path) / 60 < 2000


def test_ever_new_names_of_components_do_not_fill_the_memory(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    model, optimizer = tiny()
    with Guard(model, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(150))):
            loss = squared_error(model, batch)
            guard.backward(loss, **{f"part{number}": loss, "whole": loss})
            optimizer.step()
            optimizer.zero_grad()
    named = {name for step in steps_of(tmp_path) for name in step.values if "loss/" in name}
    assert len(named) == 100
    assert all("loss/whole" in step.values for step in steps_of(tmp_path))
    assert caplog.text.count("more than 100 names of loss components") == 1


def test_the_run_directory_grows_by_so_much_a_step(tmp_path: Path) -> None:
    model, optimizer = tiny()
    sizes = []
    with records_only(model, optimizer, tmp_path) as guard:
        for _ in range(3):
            endless(model, optimizer, guard, 200)
            guard._session.recorder.flush()
            sizes.append(written(tmp_path))
    first, second, third = sizes
    assert second - first == pytest.approx(third - second, rel=0.15), "no faster with time"
    assert (third - first) / 400 < 400, "bytes per step"


@pytest.mark.slow
def test_a_long_streak_of_bad_steps_does_not_flood_the_directory(tmp_path: Path) -> None:
    model, optimizer = tiny()
    with records_only(model, optimizer, tmp_path) as guard:
        for x, y in guard(batches(16)[at % 16] for at in range(300)):
            ((model(x) - y).pow(2).mean() * math.nan).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert written(tmp_path) / 300 < 1500
    assert len(guard.findings) < 10
