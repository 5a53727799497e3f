"""What snapshots cost: a guarded step with a snapshot every 100 steps against one without.

    python benchmarks/snapshot_cost.py                  # CPU: 10M parameters
    python benchmarks/snapshot_cost.py --device cuda    # a transformer of 124M

Blocks of 100 steps take turns, with exactly one snapshot in the blocks that have any; the ratio of
a round is taken within the round, and the median over rounds is printed. On CUDA the steps run
under `torch.cuda.set_sync_debug_mode("error")`: a single wait for the device would raise.
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

from holdfast import Guard, Snapshots

EVERY = 100


class Guarded:
    """A training under a guard, step by step."""

    def __init__(self, device: str, snapshots: Snapshots, run_dir: Path | None) -> None:
        self.device = device
        self.training = Training(CASES[device][0], device)
        self.guard = Guard(
            self.training.model,
            self.training.optimizer,
            max_norm=MAX_NORM,
            run_dir=run_dir,
            snapshots=snapshots,
        )
        self._batches = iter(self.guard(itertools.repeat(self.training.ids)))

    def steps(self, count: int) -> None:
        for _ in range(count):
            next(self._batches).random_(self.training.case.vocabulary)  # nothing to learn by heart
            self.training.step()

    def block(self) -> float:
        """Seconds of a block of steps."""
        synchronise(self.device)
        began = time.perf_counter()
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        self.steps(EVERY)
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        synchronise(self.device)
        return time.perf_counter() - began


def measure(device: str, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        variants = {
            "none": Guarded(device, Snapshots(every=0), None),
            "in memory": Guarded(device, Snapshots(every=EVERY), None),
            "and on disk": Guarded(device, Snapshots(every=EVERY), Path(folder)),
        }
        for one in variants.values():
            one.steps(2 * EVERY + 1)  # until the memory is there, and one more
        times = {name: [] for name in variants}
        for _ in range(rounds):
            for name, one in variants.items():
                times[name].append(one.block())
        for one in variants.values():
            one.guard.close()
    size = variants["in memory"].guard.snapshot_bytes
    return {
        "case": CASES[device][0].name,
        "snapshot_gib": size / 2**30,
        "step_ms": 1e3 * statistics.median(times["none"]) / EVERY,
        "ratio": {
            name: statistics.median(a / b for a, b in zip(found, times["none"], strict=True))
            for name, found in times.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    machine = (
        torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {platform.machine()}"
    )
    print(f"{machine}; torch {torch.__version__}; {torch.get_num_threads()} threads")
    found = measure(options.device, options.rounds)
    print(
        f"{found['case']}: {found['step_ms']:.2f} ms a step, "
        f"{found['snapshot_gib']:.2f} GiB a snapshot, one in {EVERY} steps"
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
