"""How the cost of a guarded step grows: with the number of tensors, and with the length of the run.

    python benchmarks/growth.py
    python benchmarks/growth.py --json found.json

Tensors: processor time that the guard adds to a step with 150 to 10,000 tensors of 64 elements,
per step and per tensor. Both kinds of steps take turns. Steps: the same for one small model, in
blocks of a long run, and the bytes that each step adds to the run directory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import nn

from headway import Guard

TENSORS = (150, 300, 1000, 3000, 10_000)
WARM_UP = 20


class ManyTensors:
    """A model of many small tensors, whose gradients are given."""

    def __init__(self, tensors: int) -> None:
        torch.manual_seed(0)
        self.model = nn.ParameterList(nn.Parameter(torch.randn(8, 8)) for _ in range(tensors))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, foreach=True)
        self.gradients = [torch.randn(8, 8) for _ in range(tensors)]

    def step(self) -> float:
        for parameter, gradient in zip(self.model, self.gradients, strict=True):
            parameter.grad = gradient
        began = time.process_time()
        self.optimizer.step()
        return time.process_time() - began


def tensor_row(tensors: int, steps: int) -> dict[str, float]:
    plain, watched = ManyTensors(tensors), ManyTensors(tensors)
    with (
        tempfile.TemporaryDirectory() as folder,
        Guard(watched.model, watched.optimizer, run_dir=folder),
    ):
        for _ in range(WARM_UP):
            plain.step(), watched.step()
        added = [watched.step() - plain.step() for _ in range(steps)]
        # The mean over whole sampling intervals: a sampled step costs more than the others.
        cost = statistics.mean(added)
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {
        "tensors": tensors,
        "added_us": 1e6 * cost,
        "added_us_per_tensor": 1e6 * cost / tensors,
        "bytes_per_step": written / (WARM_UP + steps),
    }


def step_rows(blocks: int, steps: int) -> list[dict[str, float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 6)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(model, optimizer, run_dir=folder)
        batches = iter(guard(itertools.repeat(x)))
        lines = Path(folder) / "steps.rank0.jsonl"
        size = 0
        for block in range(blocks):
            began = time.process_time()
            for _ in range(steps):
                optimizer.zero_grad()
                model(next(batches)).square().mean().backward()
                optimizer.step()
            spent = time.process_time() - began
            now = lines.stat().st_size if lines.exists() else 0
            rows.append(
                {
                    "until_step": (block + 1) * steps,
                    "step_us": 1e6 * spent / steps,
                    "bytes_per_step": (now - size) / steps,
                }
            )
            size = now
        guard.close()
    return rows


def show(rows: list[dict[str, float]]) -> None:
    print("\n" + "".join(f"{name:>22}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:22,.1f}" for value in row.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="steps for each number of tensors")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--block-steps", type=int, default=2500)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, CPU only"
    print(f"{machine}; torch {torch.__version__}; Python {platform.python_version()}")
    tensors = [tensor_row(count, options.steps) for count in TENSORS]
    show(tensors)
    steps = step_rows(options.blocks, options.block_steps)
    show(steps)
    if options.json:
        record: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "load": os.getloadavg()[0],
            "torch": torch.__version__,
            "python": platform.python_version(),
            "tensors": tensors,
            "steps": steps,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
