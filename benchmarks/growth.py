"""What grows: with the number of tensors, with the length of a run, with the number of runs.

    python benchmarks/growth.py
    python benchmarks/growth.py --json found.json
    python benchmarks/growth.py --only tensors steps

`tensors`: processor time that the guard adds to a step with 150 to 10,000 tensors of 64 elements,
per step and per tensor. Plain and guarded steps alternate. `steps`: 100,000 real steps of a small
model under the guard, in blocks: processor time of a step, resident memory, bytes that a step adds
to the run directory. `records`: 1,000,000 steps through the recording layer alone (the checks and
the writer of the run directory, no training). `runs`: memory of `headway serve` after it has read
1 to 100 runs of 1,000 steps, and after every run's charts were requested.

Processor time, bytes and memory hardly depend on other processes; no wall time is reported.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import nn

from headway import Guard
from headway.config import Settings
from headway.core.records import Column
from headway.guard.recorder import Recorder
from headway.output.notices import Notices
from headway.policy import Policy

RUNS = (1, 10, 30, 100)
RUN_STEPS = 1000
TENSORS = (150, 300, 1000, 3000, 10_000)
WARM_UP = 20


class ManyTensors:
    """A model of many small tensors with constant gradients."""

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
        Guard(watched.model, watched.optimizer, run_dir=folder) as guard,
    ):
        for _ in range(WARM_UP):
            plain.step(), watched.step()
        added = [watched.step() - plain.step() for _ in range(steps)]
        # The mean over whole sampling intervals: a sampled step costs more than the others.
        cost = statistics.mean(added)
        guard.close()
        # The names of the tensors are in another file, once.
        written = (Path(folder) / "steps.rank0.jsonl").stat().st_size
    return {
        "tensors": tensors,
        "added_us": 1e6 * cost,
        "added_us_per_tensor": 1e6 * cost / tensors,
        "bytes_per_step": written / (WARM_UP + steps),
    }


def memory_kib(process: int | str = "self", what: str = "VmRSS") -> int:
    """Resident memory of a process; `VmHWM`: its peak."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(what)))


def step_rows(blocks: int, steps: int) -> list[dict[str, float]]:
    """Real steps under the guard."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 6)
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(model, optimizer, run_dir=folder)
        batches = iter(guard(itertools.repeat(x)))

        def work() -> None:
            optimizer.zero_grad()
            model(next(batches)).square().mean().backward()
            optimizer.step()

        rows = block_rows(work, blocks, steps, Path(folder) / "steps.rank0.jsonl")
        guard.close()
    return rows


def record_rows(blocks: int, steps: int) -> list[dict[str, float]]:
    """Steps of a healthy run with 8 tensors, straight into the recorder."""
    names = [f"layer.{number}.weight" for number in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(
            settings=Settings(), policy=Policy(), run_dir=folder, facts={}, notices=Notices()
        )
        recorder.extend_axis("param", names)
        count = itertools.count()

        def work() -> None:
            step = next(count)
            wave = 0.1 * math.sin(step * 12.9898) * math.cos(step * 78.233)
            values = {
                "loss": 1.0 + 4.0 / (1 + step / 1000) + wave,
                "grad_norm": 2.0 + wave,
                "lr": 1e-3,
                "step_time_s": 0.01 + 0.001 * abs(wave),
            }
            columns = {}
            if step % 10 == 0:
                columns = {
                    "param/grad_norm": Column([0.5 + wave] * 8),
                    "param/weight_norm": Column([3.0 + 1e-6 * step] * 8),
                    "param/update_ratio": Column([1e-3 + 1e-4 * wave] * 8),
                }
            recorder.step(step, values, columns, held=False)

        rows = block_rows(work, blocks, steps, Path(folder) / "steps.rank0.jsonl")
        recorder.close(blocks * steps)
    return rows


def block_rows(
    work: Callable[[], None], blocks: int, steps: int, lines: Path
) -> list[dict[str, float]]:
    rows, size = [], 0
    for block in range(blocks):
        began = time.process_time()
        for _ in range(steps):
            work()
        spent = time.process_time() - began
        now = lines.stat().st_size if lines.exists() else 0
        rows.append(
            {
                "until_step": (block + 1) * steps,
                "step_us": 1e6 * spent / steps,
                "memory_mib": memory_kib() / 1024,
                "bytes_per_step": (now - size) / steps,
            }
        )
        size = now
    return rows


def run_rows(counts: Sequence[int] = RUNS) -> list[dict[str, float]]:
    """`headway serve` over several copies of one run."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        one = Path(scratch) / "one"
        model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with Guard(model, optimizer, run_dir=one):
            for _ in range(RUN_STEPS):
                optimizer.zero_grad()
                model(torch.randn(8, 6)).square().mean().backward()
                optimizer.step()
        served = Path(scratch) / "served"
        for count in counts:
            for number in range(count):
                if not (served / f"run{number}").exists():
                    shutil.copytree(one, served / f"run{number}")
            rows.append({"runs": count, **serve_row(served, count)})
    return rows


def serve_row(folder: Path, count: int) -> dict[str, float]:
    server = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src")},
    )
    try:
        assert server.stdout is not None
        address, _, token = server.stdout.readline().strip().partition("/?token=")

        def ask(path: str) -> Any:
            header = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(address + path, headers=header)
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)

        runs: list[Any] = []
        while len(runs) < count or any(run["checked"] < 1 for run in runs):
            time.sleep(0.2)
            runs = ask("/api/runs")["runs"]
        listed = memory_kib(server.pid)
        for run in runs:
            ask(f"/api/runs/{run['id']}/charts")
        return {
            "listed_mib": listed / 1024,
            "all_charts_mib": memory_kib(server.pid) / 1024,
            "peak_mib": memory_kib(server.pid, "VmHWM") / 1024,
        }
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def show(rows: list[dict[str, float]]) -> None:
    print("\n" + "".join(f"{name:>22}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:22,.1f}" for value in row.values()))


SUMMARY = (
    ("tensors", "tensors", "added_us_per_tensor", "time that the guard adds per tensor, µs"),
    ("tensors", "tensors", "bytes_per_step", "bytes per step, with so many tensors"),
    ("steps", "until_step", "step_us", "time of a guarded step, µs"),
    ("steps", "until_step", "memory_mib", "memory of the training process, MiB"),
    ("steps", "until_step", "bytes_per_step", "bytes per step in the run directory"),
    ("records", "until_step", "step_us", "time to record a step, µs"),
    ("records", "until_step", "memory_mib", "memory of a process that records, MiB"),
    ("records", "until_step", "bytes_per_step", "bytes per recorded step"),
    ("runs", "runs", "all_charts_mib", "memory of `headway serve`, MiB"),
)
UNITS = {"tensors": "tensors", "until_step": "steps", "runs": "runs"}


def summary(record: dict[str, Any]) -> str:
    """One table: each quantity at the start, in the middle and at the end of its range."""
    lines = ["| | first | middle | last | last ÷ first |", "|---|---|---|---|---|"]
    for part, key, name, text in SUMMARY:
        if rows := record.get(part):
            chosen = (rows[0], rows[len(rows) // 2], rows[-1])
            cells = [f"{row[name]:,.1f} ({row[key]:,} {UNITS[key]})" for row in chosen]
            cells.append(f"{rows[-1][name] / max(rows[0][name], 1e-9):.2f}")
            lines.append(f"| {text} | " + " | ".join(cells) + " |")
    return "\n".join(lines).replace("(1 runs)", "(1 run)")


def in_own_process(part: str) -> list[dict[str, float]]:
    """Measure one part: memory that another part has freed would hide growth."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        # The options of this call come first: of `--only` and `--json` the last one counts.
        command = [sys.executable, *sys.argv, f"--json={found}", "--only", part]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows: list[dict[str, float]] = json.loads(found.read_text())[part]
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=("tensors", "steps", "records", "runs"))
    parser.add_argument("--steps", type=int, default=20, help="steps for each number of tensors")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--block-steps", type=int, default=10_000, help="real steps in a block")
    parser.add_argument("--block-records", type=int, default=100_000, help="records in a block")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, CPU only"
    print(f"{machine}; torch {torch.__version__}; Python {platform.python_version()}")
    measures = {
        "tensors": lambda: [tensor_row(count, options.steps) for count in TENSORS],
        "runs": run_rows,
        "steps": lambda: step_rows(options.blocks, options.block_steps),
        "records": lambda: record_rows(options.blocks, options.block_records),
    }
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine,
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    parts = options.only or [*measures]
    for name in parts:
        print(f"\n{name}", end="", flush=True)
        record[name] = measures[name]() if len(parts) == 1 else in_own_process(name)
        show(record[name])
    print(f"\n{summary(record)}")
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
