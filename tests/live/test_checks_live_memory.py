"""Checks of memory and speed (HD8) under the real guard.

What is measured is the test's own process: the leaks are large enough to stand out from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from trainings import Batch, batches, make_net, squared_error
from watched import loud, the, watched

import holdfast
from holdfast import Guard, Severity

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


def waits(count: int, longer_by: float) -> Iterator[Batch]:
    """A data set that reads its own log again for every batch, and the log grows."""
    for number, batch in enumerate(batches(count)):
        time.sleep(0.002 + number * longer_by)
        yield batch


def timed_training(count: int, longer_by: float) -> Guard:
    model = make_net()
    return watched(model, SGD(model.parameters(), lr=1e-2), waits(count, longer_by))


@pytest.mark.slow
def test_hd804_steps_that_take_longer_and_longer() -> None:
    found = the(timed_training(300, longer_by=2e-4), "HD804")
    assert found.severity == Severity.WARNING
    assert found.step >= 190
    assert found.evidence["times"] > 1.5
    assert found.evidence["per_step_s"] == pytest.approx(2e-4, rel=0.5)
    assert "every further step takes longer" in found.message


def test_hd804_quiet_on_steps_that_take_their_time() -> None:
    assert loud(timed_training(250, longer_by=0.0)) == []
