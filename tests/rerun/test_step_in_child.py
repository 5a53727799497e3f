"""Remedies that are tried in a child process, under a check."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway import Guard
from headway.core.findings import Finding
from headway.preflight.runner import run_check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


def find(work: Callable[[], Any], code: str) -> Finding:
    gc.freeze()  # models and optimizers that earlier tests left alive are not the script's
    try:
        report = run_check(work, max_steps=5).report
    finally:
        gc.unfreeze()
    return next(item for item in report.findings if item.code == code)


def scaled(x: Tensor) -> Tensor:
    return x / x.amax(dim=1, keepdim=True)


def skipping() -> None:
    torch.manual_seed(0)
    rows = torch.rand(48, 4)
    rows[21] = 0.0
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for number, (x,) in enumerate(DataLoader(TensorDataset(rows), batch_size=8)):
        loss = net(scaled(x)).square().mean() + 0.0 * number
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_batch_that_the_loop_skipped() -> None:
    """Nothing fails in the step that shows it: only buffers are bad."""
    found = find(skipping, "HD302")
    assert found.where.line == scaled.__code__.co_firstlineno + 1
    assert [(item.tested, item.cured) for item in found.remedies if item.edits][:1] == [
        (True, True)
    ]


def test_good_data_is_not_blamed_for_what_the_loop_made_of_it() -> None:
    found = find(skipping, "HD501")
    assert "data-set sample" not in found.message


def projecting() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(torch.rand(40, 4)), batch_size=8)
    for number, (x,) in enumerate(loader):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        if number == 1:
            with torch.no_grad():
                net.weight.div_((net.weight - net.weight).norm())


def test_code_that_runs_after_one_step_only() -> None:
    """When the weights are found to be bad, the counter of the loop is that of the next batch."""
    found = find(projecting, "HD301")
    assert found.where.line == projecting.__code__.co_firstlineno + 11
    assert any(item.cured and item.edits for item in found.remedies)


def shares(items: list[Tensor]) -> Tensor:
    x = torch.stack(items)
    return x / x.sum(dim=1, keepdim=True)


def in_a_comprehension() -> None:
    torch.manual_seed(0)
    rows = torch.rand(40, 4)
    rows[21] = 0.0
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    loader = DataLoader(list(rows), batch_size=8, collate_fn=shares)  # type: ignore[arg-type]
    [step(x) for _ in range(2) for x in loader]


def test_data_of_a_collate_function_where_only_a_part_of_the_loop_can_run_again() -> None:
    found = find(in_a_comprehension, "HD501")
    assert found.where.line == shares.__code__.co_firstlineno + 2
    assert any(item.cured and item.edits for item in found.remedies)


def test_a_batch_that_the_loop_skipped_under_a_guard() -> None:
    """The data is good: only the body of the loop, run with that batch, shows the line."""
    torch.manual_seed(0)
    rows = torch.rand(48, 4)
    rows[21] = 0.0
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    skipped = 0
    with Guard(net, optimizer) as guard:
        for (x,) in guard(DataLoader(TensorDataset(rows), batch_size=8)):
            loss = net(scaled(x)).square().mean()
            if not torch.isfinite(loss):
                skipped += 1
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = next(item for item in guard.findings if item.code == "HD302")
    assert found.where.line == scaled.__code__.co_firstlineno + 1
    assert any(item.cured and item.edits for item in found.remedies)
    assert skipped == 1  # the child has counters of its own


def test_a_good_batch_that_the_loop_skipped_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("headway.rerun.step_in_child.explain_batch", asked.append)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with Guard(net, optimizer) as guard:
        for number, (x,) in enumerate(guard(DataLoader(TensorDataset(torch.rand(48, 4)), 8))):
            loss = net(x).square().mean()
            if number == 2:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert asked == []
    assert not guard.findings


class Stages:
    """A loop over the stages of a step: none of them is a whole step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rows = torch.rand(48, 4) * 0.1
        self.rows[21] = 0.0
        self.net = nn.Linear(4, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-2)
        self.position = 0

    def load(self) -> None:
        self.batch = self.rows[self.position : self.position + 8]
        self.position += 8

    def score(self) -> None:
        self.loss = self.net(self.batch).abs().sqrt().mean()  # the derivative is infinite

    def learn(self) -> None:
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()

    def run(self) -> None:
        while self.position < 40:
            for stage in ("load", "score", "learn"):
                getattr(self, stage)()


def test_a_loop_over_the_stages_of_a_step_under_a_check() -> None:
    found = find(lambda: Stages().run(), "HD201")
    assert found.where.line == Stages.score.__code__.co_firstlineno + 1
    assert any(item.cured and item.edits for item in found.remedies)


def test_a_loop_over_the_stages_of_a_step_under_a_guard() -> None:
    """It was not traced: the child finds the line, too."""
    training = Stages()
    with Guard(training.net, training.optimizer) as guard:
        training.run()
    found = next(item for item in guard.findings if item.code == "HD201")
    assert found.where.line == Stages.score.__code__.co_firstlineno + 1
    assert any(item.cured and item.edits for item in found.remedies)
    assert training.position == 40
