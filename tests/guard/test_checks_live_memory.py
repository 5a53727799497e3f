"""HD8, memory and speed, under the real guard: each check fires on its fault, not on its twin."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.guarded_trainings import loud, loud_codes, the, watched
from support.paired_trainings import events_of
from support.trainings import Batch, batches, make_net, squared_error
from torch import Tensor, nn
from torch.optim import SGD

import headway
from headway import Finding, Guard, Report, Severity
from headway.diagnosis import diagnose
from headway.guard import step_machine

MIB = 2**20


# HD801: host memory.


HOARDER = """
import sys
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from headway import Guard

run_dir, kind = sys.argv[1:]
STEPS = 430
torch.set_num_threads(1)
torch.manual_seed(0)


class Samples(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, at):  # dataset
        if kind == "workers":
            self.cache[at] = numpy.ones(12_000)
        return torch.randn(6)


def train():
    model = nn.Sequential(nn.Linear(6, 12000), nn.ReLU(), nn.Linear(12000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = Subset(Samples(), range(8 * STEPS))
    loader = DataLoader(data, batch_size=8, num_workers=2 if kind == "workers" else 0)
    history = []
    with Guard(model, optimizer, run_dir=run_dir) as guard:
        for x in guard(loader):
            out = model(x)
            loss = out.square().mean()  # graphs
            loss.backward(retain_graph=kind == "graphs")
            optimizer.step()
            optimizer.zero_grad()
            if kind == "graphs":
                history.append(loss)
            elif kind == "arrays":
                history.append(numpy.zeros(100_000) + loss.item())  # arrays
            elif kind == "dicts":
                history.append({number: str(number) * 60 for number in range(1500)})  # dicts
            elif kind == "tensors":
                history.append(model[0].weight.detach().clone())  # tensors
            elif kind == "library":
                history.append(nn.functional.softplus(model[0].weight.detach()).numpy())  # library
            else:
                history.append(loss.item())


train()
"""


def hoarding(folder: Path, kind: str) -> Report:
    """A training that keeps something at every step.

    In a process of its own, whose allocator gives large blocks back: one that has freed much before
    could take the leak from that, and its memory would not grow.
    """
    script = folder / "train.py"
    script.write_text(HOARDER, encoding="utf-8")
    run = [sys.executable, str(script), str(folder / "run"), kind]
    subprocess.run(run, check=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"})
    return headway.diagnose(folder / "run")


def told(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity >= Severity.WARNING]


def line_of(words: str) -> int:
    [line] = [
        at for at, text in enumerate(HOARDER.splitlines(), start=1) if text.endswith(f"# {words}")
    ]
    return line


@pytest.mark.slow
def test_hd801_losses_kept_with_their_graphs(tmp_path: Path) -> None:
    report = hoarding(tmp_path, "graphs")
    graphs, memory = told(report)
    assert (graphs.code, memory.code) == ("HD803", "HD801")
    assert graphs.severity == memory.severity == Severity.ERROR
    assert [cause.code for cause in report.causes] == ["HD803"], "the memory is a symptom"
    for found in (graphs, memory):
        assert found.where.file == str(tmp_path / "train.py")
        assert (found.where.line, found.where.function) == (line_of("graphs"), "train")
    assert memory.step is not None
    assert memory.step >= 350  # a trend of 300 steps after a grace of 50
    assert memory.evidence["after"] - memory.evidence["before"] > 64 * MIB
    # What each graph holds on to: the hidden layer of 8 samples behind the ReLU. Half of that at
    # least is new memory: the allocator may hand out pages that were resident before.
    assert 0.5 < memory.evidence["per_step"] / (8 * 12000 * 4) < 2.5
    assert "still rising" in memory.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "dicts", "tensors", "library"])
def test_hd801_objects_that_are_kept(kind: str, tmp_path: Path) -> None:
    (found,) = told(hoarding(tmp_path, kind))
    assert found.code == "HD801"
    assert found.where.file == str(tmp_path / "train.py")
    assert (found.where.line, found.where.function) == (line_of(kind), "train")
    assert f"allocated at train.py:{line_of(kind)} in train" in found.message


@pytest.mark.slow
def test_hd801_workers_whose_data_set_keeps_everything(tmp_path: Path) -> None:
    (found,) = told(hoarding(tmp_path, "workers"))
    assert found.code == "HD801"
    assert (found.where.line, found.where.function) == (line_of("dataset"), "__getitem__")
    assert "the loader workers grow; their data set is at" in found.message


@pytest.mark.slow
def test_hd801_quiet_on_losses_kept_as_numbers(tmp_path: Path) -> None:
    report = hoarding(tmp_path, "numbers")
    assert report.verdict == "healthy"
    assert events_of(tmp_path / "run", "growth") == []


# HD802: device memory.


def test_hd802_is_not_run_on_the_cpu_and_says_so(tmp_path: Path) -> None:
    model = make_net()
    watched(model, SGD(model.parameters(), lr=1e-2), batches(20), run_dir=tmp_path / "run")
    report = headway.diagnose(tmp_path / "run")
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
    optimizer = SGD(model.parameters(), lr=1e-4, fused=True)
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
        assert found.where.function == squared_error.__name__, "by its kept graphs"
        assert the(guard, "HD803").where == found.where
        assert found.evidence["after"] - found.evidence["before"] > 64 * MIB
    else:
        assert loud(guard) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_hd802_tensors_kept_on_the_device() -> None:
    model = make_net().cuda()
    optimizer = SGD(model.parameters(), lr=1e-3, fused=True)
    kept: list[Tensor] = []
    with Guard(model, optimizer) as guard:
        for x, y in guard(batches(420)):
            squared_error(model, (x.cuda(), y.cuda())).backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(torch.ones(1 << 17, device="cuda"))  # kept here
    (found,) = loud(guard)
    assert found.code == "HD802"
    lines, first = inspect.getsourcelines(test_hd802_tensors_kept_on_the_device)
    assert found.where.line is not None
    assert "# kept here" in lines[found.where.line - first]


# HD804: slower and slower.


def waits(count: int, longer_by: float) -> Iterator[Batch]:
    """A data set that reads its own log again for every batch, and the log grows."""
    for number, batch in enumerate(batches(count)):
        time.sleep(0.002 + number * longer_by)
        yield batch


def timed_training(count: int, longer_by: float) -> Guard:
    """Ends as soon as HD804 is found: a busy machine blurs a trend, and it takes longer."""
    model = make_net()
    optimizer = SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for batch in guard(waits(count, longer_by)):
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if any(finding.code == "HD804" for finding in guard.findings):
                break
    return guard


@pytest.mark.slow
def test_hd804_steps_that_take_longer_and_longer() -> None:
    found = the(timed_training(600, longer_by=2e-4), "HD804")
    assert found.severity == Severity.WARNING
    assert found.step >= 190
    assert found.evidence["times"] > 1.5
    assert found.evidence["per_step_s"] > 1e-4
    assert "the time per step is still growing" in found.message


def test_hd804_quiet_on_steps_that_take_their_time() -> None:
    assert loud(timed_training(250, longer_by=0.0)) == []


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 256)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return state + torch.tanh(self.encode(x))  # carried


def _carried_on(steps: int) -> Guard | None:
    """A training whose every step goes through all before it; its guard, if the time was told."""
    torch.manual_seed(0)
    model = Recurrent()
    optimizer = SGD(model.parameters(), lr=1e-3)
    state = torch.zeros(16, 256)
    with Guard(model, optimizer) as guard:
        for x in guard(torch.randn(steps, 16, 6)):
            state = model(x, state)
            state.square().mean().backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
            if "HD804" in loud_codes(guard):
                return guard
    return None


@pytest.mark.slow
def test_hd804_a_state_carried_on_with_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every backward goes through all the steps before: kept graphs are the cause."""
    # The processor's clock: on a busy machine the wall's tells more of the neighbours.
    monkeypatch.setattr(step_machine, "time", SimpleNamespace(perf_counter=time.process_time))
    # And even that is disturbed by them, now and then.
    guard = next((found for _ in range(3) if (found := _carried_on(900))), None)
    assert guard is not None
    assert the(guard, "HD804").evidence["times"] > 1.5
    carried = the(guard, "HD803")
    lines, first = inspect.getsourcelines(Recurrent.forward)
    assert carried.where.line == first + len(lines) - 1
    assert "the graph of each step continues that of the step before" in carried.message
    causes = {item.code: cause.code for cause in diagnose(loud(guard)) for item in cause.symptoms}
    assert causes["HD804"] == "HD803"
