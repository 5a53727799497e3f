"""HD8, memory and speed, under the real guard: each check fires on its fault, not on its twin."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from trainings import Batch, batches, make_net, squared_error
from watched import loud, the, watched

import holdfast
from holdfast import Guard, Report, Severity

MIB = 2**20


# HD801: host memory.


HOARDER = """
import sys
import torch
from torch import nn
from holdfast import Guard

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12000), nn.ReLU(), nn.Linear(12000, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
history = []
with Guard(model, optimizer, run_dir=sys.argv[1]) as guard:
    for x in guard(torch.randn(420, 8, 6)):
        loss = model(x).square().mean()
        loss.backward(retain_graph=sys.argv[2] == "graphs")
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss if sys.argv[2] == "graphs" else loss.item())
"""


def hoarding(folder: Path, kept: str) -> Report:
    """Every loss is put in a list, with its graph or as a number.

    In a process of its own, whose allocator gives large blocks back: one that has freed much before
    could take the leak from that, and its memory would not grow.
    """
    run = [sys.executable, "-c", HOARDER, str(folder), kept]
    subprocess.run(run, check=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"})
    return holdfast.diagnose(folder)


@pytest.mark.slow
def test_hd801_losses_kept_with_their_graphs(tmp_path: Path) -> None:
    report = hoarding(tmp_path / "run", "graphs")
    (found,) = [finding for finding in report.findings if finding.severity >= Severity.WARNING]
    assert (found.code, found.severity) == ("HD801", Severity.ERROR)
    assert found.step is not None
    assert found.step >= 350  # a trend of 300 steps after a grace of 50
    assert found.evidence["after"] - found.evidence["before"] > 64 * MIB
    # What each graph holds on to: the hidden layer of 8 samples behind the ReLU. Half of that at
    # least is new memory: the allocator may hand out pages that were resident before.
    assert 0.5 < found.evidence["per_step"] / (8 * 12000 * 4) < 2.5
    assert "still rising" in found.message


@pytest.mark.slow
def test_hd801_quiet_on_losses_kept_as_numbers(tmp_path: Path) -> None:
    assert hoarding(tmp_path / "run", "numbers").verdict == "healthy"


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
    """Ends as soon as something is found: a busy machine blurs a trend, and it takes longer."""
    model = make_net()
    optimizer = SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for batch in guard(waits(count, longer_by)):
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if guard.findings:
                break
    return guard


@pytest.mark.slow
def test_hd804_steps_that_take_longer_and_longer() -> None:
    found = the(timed_training(600, longer_by=2e-4), "HD804")
    assert found.severity == Severity.WARNING
    assert found.step >= 190
    assert found.evidence["times"] > 1.5
    assert found.evidence["per_step_s"] > 1e-4
    assert "every further step takes longer" in found.message


def test_hd804_quiet_on_steps_that_take_their_time() -> None:
    assert loud(timed_training(250, longer_by=0.0)) == []
