"""Cost of snapshots: blocks of guarded steps with one snapshot against blocks without.

    python benchmarks/snapshot_cost.py                  # CPU: 10M parameters
    python benchmarks/snapshot_cost.py --device cuda    # a transformer of 124M

One training; every second block of 100 steps contains one snapshot. The ratio of neighbouring
blocks is computed, and the median over pairs is printed: one snapshot in 100 steps. On CUDA the
steps run under `torch.cuda.set_sync_debug_mode("error")`: a single wait for the device would raise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from guard_overhead import CASES, MAX_NORM, Training, synchronise

from headway import Guard, Snapshots

BLOCK = 100


class Guarded:
    """A training under a guard, step by step, with a snapshot in every other block."""

    def __init__(self, device: str, run_dir: Path | None) -> None:
        self.device = device
        self.training = Training(CASES[device][0], device)
        self.guard = Guard(
            self.training.model,
            self.training.optimizer,
            max_norm=MAX_NORM,
            run_dir=run_dir,
            snapshots=Snapshots(every=2 * BLOCK),
        )
        self._batches = iter(self.guard(itertools.repeat(self.training.ids)))
        self.pause = 0.0
        """The longest that the host was busy between two steps."""

    def steps(self, count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            ids = next(self._batches)
            self.pause = max(self.pause, time.perf_counter() - began)
            ids.random_(self.training.case.vocabulary)  # new random tokens at each step
            self.training.step()

    def block(self) -> float:
        """Seconds of a block of steps."""
        synchronise(self.device)
        began = time.perf_counter()
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        self.steps(BLOCK)
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        synchronise(self.device)
        return time.perf_counter() - began

    def pairs(self, count: int) -> list[tuple[float, float]]:
        """Seconds (with, without) of `count` pairs of blocks."""
        # Warm-up, until the memory is allocated. The snapshot is then in the middle of a block.
        self.steps(4 * BLOCK + BLOCK // 2)
        self.pause = 0.0
        found = []
        for _ in range(count):
            without, with_one = self.block(), self.block()
            found.append((with_one, without))
        self.guard.close()
        return found


def measure(device: str, rounds: int) -> dict[str, Any]:
    in_memory = Guarded(device, None)
    pairs = in_memory.pairs(rounds)
    with tempfile.TemporaryDirectory() as folder:
        on_disk = Guarded(device, Path(folder)).pairs(rounds)
    step = statistics.median(without for _, without in pairs) / BLOCK
    return {
        "case": CASES[device][0].name,
        "snapshot_gib": in_memory.guard.snapshot_bytes / 2**30,
        "step_ms": 1e3 * step,
        "host_pause_ms": 1e3 * in_memory.pause,
        "ratio": {
            "in memory": statistics.median(a / b for a, b in pairs),
            "and on disk": statistics.median(a / b for a, b in on_disk),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    machine = (
        torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {platform.machine()}"
    )
    print(f"{machine}; torch {torch.__version__}; {torch.get_num_threads()} threads")
    found = measure(options.device, options.rounds)
    print(
        f"{found['case']}: {found['step_ms']:.2f} ms per step, "
        f"{found['snapshot_gib']:.2f} GiB per snapshot, one in {BLOCK} steps, "
        f"{found['host_pause_ms']:.1f} ms of host time"
    )
    for name, ratio in found["ratio"].items():
        print(f"  snapshots {name:12} {ratio:.4f} of the step without")
    if options.json:
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        options.json.write_text(json.dumps({**about, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
