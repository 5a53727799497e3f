"""How busy the machine is: read from a folder like /proc, and from a GPU that a stand-in plays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.paired_trainings import records_of

from headway import Guard
from headway.core.records import Header, StepRecord
from headway.core.signals import HOST_SIGNALS
from headway.guard.endings import watchdog
from headway.guard.measure import system_sampler
from headway.guard.measure.system_sampler import NvidiaGpu, SystemSampler

TICKS = os.sysconf("SC_CLK_TCK")


def fill(proc: Path, busy_s: float, received: int, read: int) -> None:
    own = proc / str(os.getpid())
    for folder in (own, proc / "net", proc / "self"):
        folder.mkdir(parents=True, exist_ok=True)
    ticks = int(busy_s * TICKS)
    (proc / "stat").write_text(f"cpu  {ticks} 0 0 900 50 0 0 0 0 0\ncpu0 1 2 3\n")
    fields = " ".join(["R", *["0"] * 10, str(ticks), "0", *["0"] * 9])
    (own / "stat").write_text(f"1 (python) {fields}")
    table = f"head\nhead\n  lo: 9 0 0 0 0 0 0 0 9\neth0: {received} 0 0 0 0 0 0 0 5 0\n"
    (proc / "net" / "dev").write_text(table)
    (own / "io").write_text(f"rchar: 1\nread_bytes: {read}\nwrite_bytes: 0\n")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(system_sampler.time, "monotonic", lambda: now[0])
    return now


def test_counters_become_rates_and_samples_a_mean(tmp_path: Path, clock: list[float]) -> None:
    fill(tmp_path, 10.0, 1000, 0)
    sampler = SystemSampler(proc=tmp_path)
    assert sampler.take() == {}
    clock[0] = 102.0
    fill(tmp_path, 13.0, 5000, 800)
    sampler.sample()
    clock[0] = 104.0
    fill(tmp_path, 13.0, 5000, 800)
    sampler.sample()
    found = sampler.take()
    assert found["process_cpu_cores"] == found["host_cpu_cores"] == 0.75  # 1.5 and 0
    assert found["network_read_bytes_per_s"] == 1000.0
    assert found["disk_read_bytes_per_s"] == 200.0
    assert found["host_memory_used_bytes"] > 0
    assert set(found) == set(HOST_SIGNALS)
    assert sampler.take() == {}


def test_what_the_system_does_not_tell_is_absent(tmp_path: Path, clock: list[float]) -> None:
    fill(tmp_path, 10.0, 1000, 0)
    (tmp_path / str(os.getpid()) / "io").unlink()
    (tmp_path / "net" / "dev").write_text("what?\n\nno table\n")
    sampler = SystemSampler(proc=tmp_path)
    clock[0] = 101.0
    sampler.sample()
    assert set(sampler.take()) == {"process_cpu_cores", "host_cpu_cores", "host_memory_used_bytes"}


class Nvml:
    """What nvidia-ml-py would say; the clock cannot be read."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1

    def __init__(self, known: str = "GPU-1") -> None:
        self.known = known

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.known:
            raise RuntimeError("not found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> Any:
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, gpu: str) -> Any:
        return SimpleNamespace(used=5 << 30)

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:
        return 312_500

    def nvmlDeviceGetTemperature(self, gpu: str, kind: int) -> int:
        return 64

    def nvmlDeviceGetClockInfo(self, gpu: str, kind: int) -> int:
        raise RuntimeError("not supported")


def test_a_gpu_tells_what_it_can() -> None:
    assert NvidiaGpu(Nvml(), "GPU-1").read() == {
        "gpu_busy_share": 0.87,
        "gpu_memory_used_bytes": float(5 << 30),
        "gpu_power_w": 312.5,
        "gpu_temperature_c": 64.0,
    }
    other = NvidiaGpu(Nvml("GPU-2"), "GPU-1")
    assert other.read() == other.read() == {}
    assert NvidiaGpu.of(torch.device("cpu")) is None
    assert NvidiaGpu.of(None) is None


def test_a_run_records_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog's thread reads it; the step that follows has the numbers."""
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, run_dir=tmp_path / "run") as guard:
        for _ in range(8):
            guard.backward(model(torch.ones(2, 4)).sum() * 0.01)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.03)
    records = records_of(tmp_path / "run")
    header = next(record for record in records if isinstance(record, Header))
    assert set(HOST_SIGNALS) <= set(header.signals)
    known = [record.values for record in records if isinstance(record, StepRecord)]
    assert any(values.get("host_memory_used_bytes", 0) > 0 for values in known)
    assert any("process_cpu_cores" in values for values in known)


def test_without_a_run_directory_nothing_is_read() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer) as guard:
        assert guard._session.system is None
