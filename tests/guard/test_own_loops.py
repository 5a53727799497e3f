"""Loops that do not go through `guard(loader)`: what an adapter tells the guard instead."""

from __future__ import annotations

from pathlib import Path

import torch
from support.paired_trainings import steps_of
from support.trainings import batches, make_net, squared_error

from headway import Guard


def run(
    guard: Guard, net: torch.nn.Module, optimizer: torch.optim.Optimizer, **wait: float
) -> None:
    for batch in batches(5):
        guard.saw_batch(batch, **wait)
        squared_error(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        guard.step_done()


def test_a_resumed_run_goes_on_counting_where_its_tool_does(tmp_path: Path) -> None:
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Guard(net, optimizer, run_dir=tmp_path) as guard:
        guard.count_from(100)
        run(guard, net, optimizer)
    assert [step.step for step in steps_of(tmp_path)] == [100, 101, 102, 103, 104]


def test_a_wait_that_nobody_measured_is_not_recorded_as_none(tmp_path: Path) -> None:
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Guard(net, optimizer, run_dir=tmp_path / "unknown") as guard:
        run(guard, net, optimizer)
    with Guard(net, optimizer, run_dir=tmp_path / "known") as guard:
        run(guard, net, optimizer, waited=0.25)
    for step in steps_of(tmp_path / "unknown"):
        assert "loader_wait_s" not in step.values
        assert step.step == 0 or "samples_per_s" in step.values
    assert [step.values["loader_wait_s"] for step in steps_of(tmp_path / "known")] == [0.25] * 5
