"""Checks of memory and speed (HD8) under the real guard.

What is measured is the test's own process: the leaks are large enough to stand out from it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from trainings import batches, make_net, squared_error
from watched import loud, the, watched

import holdfast
from holdfast import Guard, Severity
from holdfast.live import session

MIB = 2**20


# HD801: host memory.


def hoarding(kept: list[Any], *, graph: bool) -> Guard:
    """Every loss is put in a list, with everything its graph holds on to or without."""
    model = nn.Sequential(nn.Linear(6, 8000), nn.ReLU(), nn.Linear(8000, 1))
    torch.manual_seed(0)
    optimizer = SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer) as guard:
        for batch in guard(batches(420)):
            loss = squared_error(model, batch)
            loss.backward(retain_graph=graph)
            optimizer.step()
            optimizer.zero_grad()
            kept.append(loss if graph else loss.item())
    return guard


@pytest.mark.slow
def test_hd801_losses_kept_with_their_graphs() -> None:
    kept: list[Tensor] = []
    guard = hoarding(kept, graph=True)
    kept.clear()
    found = the(guard, "HD801")
    assert found.severity == Severity.ERROR
    assert found.step >= 350  # a trend of 300 steps after a grace of 50
    assert found.evidence["after"] - found.evidence["before"] > 64 * MIB
    assert "still rising" in found.message


def test_hd801_quiet_on_losses_kept_as_numbers() -> None:
    assert loud(hoarding([], graph=False)) == []


# HD802: device memory.


def test_hd802_is_not_run_on_the_cpu_and_says_so(tmp_path: Path) -> None:
    model = make_net()
    watched(model, SGD(model.parameters(), lr=1e-2), batches(20), run_dir=tmp_path / "run")
    report = holdfast.diagnose(tmp_path / "run")
    reasons = {item.code: item.reason for item in report.not_run}
    assert "device_allocated_bytes" in reasons["HD802"]
    assert "HD801" not in reasons
    assert "HD804" not in reasons


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("leaks", [True, False])
def test_hd802_losses_kept_with_their_graphs_on_the_device(*, leaks: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16000), nn.ReLU(), nn.Linear(16000, 1)).cuda()
    optimizer = SGD(model.parameters(), lr=1e-3, fused=True)
    kept: list[Tensor] = []
    with Guard(model, optimizer) as guard:
        for x, y in guard(batches(420)):
            loss = squared_error(model, (x.cuda(), y.cuda()))
            loss.backward(retain_graph=leaks)
            optimizer.step()
            optimizer.zero_grad()
            kept.append(loss if leaks else loss.detach())
    if leaks:
        found = the(guard, "HD802")
        assert found.severity == Severity.ERROR
        assert found.evidence["after"] - found.evidence["before"] > 64 * MIB
    else:
        assert loud(guard) == []


# HD804: slower and slower.


@pytest.fixture
def _own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are timed by what this process computes, whatever else runs on the machine."""
    monkeypatch.setattr(session.time, "perf_counter", time.process_time)


def averaging(steps: int, *, cut: bool) -> Guard:
    """A penalty on a running mean, whose graph reaches back to the first batch unless it is cut."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = SGD(model.parameters(), lr=1e-3)
    mean = torch.zeros(4)
    with Guard(model, optimizer) as guard:
        for x, y in guard(batches(steps)):
            out = model(x)
            mean = 0.9 * (mean.detach() if cut else mean) + 0.1 * out.mean(dim=0)
            loss = (out - y).square().mean() + mean.square().mean()
            loss.backward(retain_graph=not cut)
            optimizer.step()
            optimizer.zero_grad()
    return guard


@pytest.mark.slow
@pytest.mark.usefixtures("_own_time")
def test_hd804_graph_that_reaches_back_over_all_steps() -> None:
    found = the(averaging(320, cut=False), "HD804")
    assert found.severity == Severity.WARNING
    assert found.step >= 190
    assert found.evidence["times"] > 1.5
    assert found.evidence["per_step_s"] > 0
    assert "detach" in found.remedies[0].text


@pytest.mark.usefixtures("_own_time")
def test_hd804_quiet_when_the_graph_is_cut_at_every_step() -> None:
    assert loud(averaging(600, cut=True)) == []
