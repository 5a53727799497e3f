"""Reads how busy the machine is: processor, memory, disk, network, GPU.

The watchdog's thread, which runs once a second anyway, calls `sample`; the next step record gets
the mean of the samples since the last one. The training thread reads nothing and does not wait. A
GPU is read through NVML, if nvidia-ml-py is installed; this does not wait for its work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from headway.core.numbers import round_digits
from headway.core.signals import GPU_SIGNALS, HOST_SIGNALS
from headway.guard.endings.host_memory import read_meminfo
from headway.guard.endings.process_activity import cpu_seconds, descendants

PROC = Path("/proc")
MAX_SAMPLES = 4096
"""Samples kept for a step that takes very long."""


class SystemSampler:
    """Samples the machine from one thread, for the step records of another."""

    def __init__(self, device: torch.device | None = None, proc: Path = PROC) -> None:
        """`device`: where the model is; its GPU is read if it is one of NVIDIA's."""
        self._proc = proc
        self._gpu = NvidiaGpu.of(device)
        self._last: tuple[float, Mapping[str, float]] = (time.monotonic(), self._counters())
        self._samples: list[dict[str, float]] = []

    @property
    def names(self) -> Sequence[str]:
        """Signals that the records may contain."""
        return (*HOST_SIGNALS, *(GPU_SIGNALS if self._gpu is not None else ()))

    def sample(self) -> None:
        """Read once; called about once a second."""
        now, counters = time.monotonic(), self._counters()
        last, self._last = self._last, (now, counters)
        found = self._levels()
        for name, count in counters.items():
            # A loader worker that has ended takes its count with it.
            grown = max(count - last[1].get(name, count), 0.0)
            found[name] = grown / max(now - last[0], 1e-3)
        if self._gpu is not None:
            found |= self._gpu.read()
        if len(self._samples) < MAX_SAMPLES:
            self._samples.append(found)

    def take(self) -> dict[str, float]:
        """The mean of each signal since the last call; empty if nothing was read."""
        if not self._samples:
            return {}
        samples, self._samples = self._samples, []
        names = dict.fromkeys(name for sample in samples for name in sample)
        return {
            name: round_digits(sum(known) / len(known))
            for name in names
            if (known := [sample[name] for sample in samples if name in sample])
        }

    def _levels(self) -> dict[str, float]:
        memory = read_meminfo()
        if not {"MemTotal", "MemAvailable"} <= memory.keys():
            return {}
        return {"host_memory_used_bytes": float(memory["MemTotal"] - memory["MemAvailable"])}

    def _counters(self) -> dict[str, float]:
        """Totals that only grow, by the name of the signal that is their rate."""
        if not (self._proc / "self").exists():
            return _portable_counters()
        found: dict[str, float] = {}
        own = os.getpid()
        folders = [self._proc / str(pid) for pid in (own, *descendants(own))]
        found["process_cpu_cores"] = sum(cpu_seconds(folder) for folder in folders)
        with suppress(OSError, ValueError, IndexError):
            found["host_cpu_cores"] = _busy_seconds((self._proc / "stat").read_text())
        with suppress(OSError, ValueError, IndexError):
            received, sent = _network_bytes((self._proc / "net" / "dev").read_text())
            found["network_read_bytes_per_s"] = received
            found["network_write_bytes_per_s"] = sent
        for folder in folders:
            with suppress(OSError, ValueError):  # a container may deny it
                for name, count in _disk_bytes((folder / "io").read_text()).items():
                    found[name] = found.get(name, 0.0) + count
        return found


def _busy_seconds(stat: str) -> float:
    """Seconds that all cores of the host were busy, from /proc/stat."""
    fields = [float(field) for field in stat.splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # idle, iowait


def _network_bytes(table: str) -> tuple[float, float]:
    """Bytes received and sent through all interfaces but the loop-back, from /proc/net/dev."""
    received = sent = 0.0
    for line in table.splitlines()[2:]:
        name, _, rest = line.partition(":")
        if name.strip() != "lo":
            fields = rest.split()
            received += float(fields[0])
            sent += float(fields[8])
    return received, sent


def _disk_bytes(io: str) -> dict[str, float]:
    """Bytes read from and written to storage, from /proc/…/io."""
    counts = dict(line.split(": ") for line in io.splitlines() if ": " in line)
    names = {"read_bytes": "disk_read_bytes_per_s", "write_bytes": "disk_write_bytes_per_s"}
    return {name: float(counts[key]) for key, name in names.items() if key in counts}


def _portable_counters() -> dict[str, float]:
    """The same from psutil, where there is no /proc."""
    try:
        import psutil
    except ImportError:
        return {}

    def processor() -> dict[str, float]:
        own, host = psutil.Process().cpu_times(), psutil.cpu_times()
        busy = float(sum(host) - host.idle)
        return {"process_cpu_cores": float(own.user + own.system), "host_cpu_cores": busy}

    def network() -> dict[str, float]:
        count = psutil.net_io_counters()
        received, sent = float(count.bytes_recv), float(count.bytes_sent)
        return {"network_read_bytes_per_s": received, "network_write_bytes_per_s": sent}

    def disk() -> dict[str, float]:
        count = psutil.disk_io_counters()
        read, written = float(count.read_bytes), float(count.write_bytes)
        return {"disk_read_bytes_per_s": read, "disk_write_bytes_per_s": written}

    found: dict[str, float] = {}
    for read in (processor, network, disk):
        with suppress(Exception):  # psutil may also raise NotImplementedError
            found |= read()
    return found


class NvidiaGpu:
    """One GPU, read through NVML."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """`nvml` is the module `pynvml`; it is started at the first reading, in that thread."""
        self._nvml = nvml
        self._uuid = uuid
        self._handle: Any = None
        self._failed = False

    @classmethod
    def of(cls, device: torch.device | None) -> NvidiaGpu | None:
        """The GPU of a CUDA device; None for another device and without nvidia-ml-py."""
        if device is None or device.type != "cuda" or torch.version.cuda is None:
            return None
        try:
            import pynvml

            # The numbers of NVML ignore CUDA_VISIBLE_DEVICES; the identity does not.
            uuid = torch.cuda.get_device_properties(device).uuid
        except (ImportError, AttributeError, RuntimeError):
            return None
        return cls(pynvml, f"GPU-{uuid}")

    def read(self) -> dict[str, float]:
        """The values that the driver reports; a value that this GPU does not have is absent."""
        nvml = self._nvml
        if self._failed:
            return {}
        if self._handle is None:
            try:
                nvml.nvmlInit()
                self._handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            except Exception:  # an old driver, a GPU that was divided: of no use for this run
                self._failed = True
                return {}
        readers: dict[str, Callable[[Any], float]] = {
            "gpu_busy_share": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "gpu_memory_used_bytes": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
            "gpu_power_w": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "gpu_temperature_c": lambda gpu: nvml.nvmlDeviceGetTemperature(
                gpu, nvml.NVML_TEMPERATURE_GPU
            ),
            "gpu_clock_mhz": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        }
        found = {}
        for name, reader in readers.items():
            with suppress(Exception):  # some GPUs lack some values
                found[name] = float(reader(self._handle))
        return found
