"""Cost of many ranks: messages, bytes, files and memory; measured for 2 and 4 ranks, simulated for
more.

    python benchmarks/ranks_cost.py [--json FILE] [--files 1000] [--quick]

1. Real processes (gloo): a DDP step, the same with the one reduction the guard adds, and a guarded
   one, alternating in one run. Bytes and messages are those the kernel counts for the process.
2. 8, 1,000 and 16,000 ranks: the simulated reduction (`_reductions.py`) against the closed form,
   compared with that of the gradients; and the host time for reading the table.
3. A run directory of many ranks, with a line per step from every rank and as written by default:
   files, bytes, and time and memory of `headway diagnose` with at most 256 open files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch
import torch.distributed as dist
from _reductions import Network, ring, simulate_ring, simulate_tree, tree
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headway import Guard
from headway.core.records import Column, Header, StepRecord
from headway.core.signals import Signal
from headway.guard.ranks.rank_table import RankField, TableLayout
from headway.rundir.writer import RunDirWriter

SLOTS = len(RankField)
"""Numbers that a rank reports at a step."""
SOURCE = Path(__file__).resolve().parents[1] / "src"
FLOAT = 4
NETWORK = Network(alpha=5e-6, beta=1 / 25e9)
"""Assumed: 5 µs a message and 25 GB/s a link, one 200 Gbit/s adapter."""
GRADIENT = 2 * 7_000_000_000
"""Bytes of the gradients of a model of 7 billion parameters in bf16."""
COLUMNS = ("loss", "grad_norm", "step_time_s", "batch_hash")
OPEN_FILES = 256


# 1. Real processes.


def counted() -> tuple[int, int]:
    """(messages, bytes) this process has written so far, all to sockets: it has no open files."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["syscw"]), int(fields["wchar"])


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    model = DistributedDataParallel(inner)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def worker(rank: int, world: int, meeting: str, steps: int) -> None:
    """One rank: the variants of a step alternate; rank 0 prints their times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    batch = torch.randn(128, 256)
    table = torch.zeros(world * SLOTS)
    plain, watched = net(), net()
    guard = Guard(*watched)
    variants = {"plain": plain, "with the reduction": plain, "guarded": watched}
    taken: dict[str, list[tuple[float, int, int]]] = {name: [] for name in variants}
    for _ in range(steps):
        for name, (model, optimizer) in variants.items():
            before, began = counted(), time.perf_counter()
            model(batch).square().mean().backward()
            if name == "with the reduction":
                dist.all_reduce(table)
            optimizer.step()
            optimizer.zero_grad()
            seconds, after = time.perf_counter() - began, counted()
            taken[name].append((seconds, after[0] - before[0], after[1] - before[1]))
    guard.close()
    if rank == 0:
        settled = {name: found[steps // 5 :] for name, found in taken.items()}
        print(json.dumps({"ranks": world, "floats": table.numel(), **compare(settled)}))
    dist.destroy_process_group()


def compare(taken: dict[str, list[tuple[float, int, int]]]) -> dict[str, Any]:
    """Every variant against the plain step of the same round."""
    columns = {name: list(zip(*found, strict=True)) for name, found in taken.items()}
    base = columns.pop("plain")
    seconds, messages, sent = (statistics.median(column) for column in base)
    found: dict[str, Any] = {"plain_ms": 1e3 * seconds, "bytes_of_gradients": sent, "variants": {}}
    for name, column in columns.items():
        found["variants"][name] = {
            "ratio": statistics.median(b / a for a, b in zip(base[0], column[0], strict=True)),
            "messages": statistics.median(column[1]) - messages,
            "bytes": statistics.median(column[2]) - sent,
        }
    return found


def measure(world: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker"]
        rest = [str(world), str(Path(folder) / "meeting"), str(steps)]
        ranks = [
            subprocess.Popen([*command, str(rank), *rest], stdout=subprocess.PIPE)
            for rank in range(world)
        ]
        said = [rank.communicate(timeout=600)[0] for rank in ranks]
    result: dict[str, Any] = json.loads(said[0])
    # Without the headers and handshakes of gloo, which dominate such short messages.
    result["payload_bytes"] = ring(world, FLOAT * result["floats"], NETWORK).sent / world
    return result


# 2. Simulation.


def reduced_bytes(ranks: int) -> int:
    """Bytes of the vector that a guard reduces at every step."""
    layout = TableLayout(ranks, 0)
    return layout.floats * layout.dtype.itemsize


def simulate(ranks: int) -> dict[str, Any]:
    size = reduced_bytes(ranks)
    found: dict[str, Any] = {"ranks": ranks, "bytes": size}
    for name, closed, simulated in (
        ("ring", ring, simulate_ring),
        ("tree", tree, simulate_tree),
    ):
        exact, seen = closed(ranks, size, NETWORK), simulated(ranks, size, NETWORK)
        if (exact.messages, round(exact.sent)) != (seen.messages, round(seen.sent)):
            raise SystemExit(f"{name}, {ranks} ranks: the simulation sends other messages: {seen}")
        late = np.random.default_rng(0).exponential(1e-3, ranks)
        skewed = simulated(ranks, size, NETWORK, late).seconds - float(late.max())
        found[name] = {
            "us": 1e6 * exact.seconds,
            "simulated_over_closed": seen.seconds / exact.seconds,
            "us_after_the_last_rank_came": 1e6 * skewed,
            "messages": seen.messages,
            "busiest_rank_sends": seen.most_messages,
            "bytes_sent": seen.sent,
        }
    gradients = min(way(ranks, GRADIENT, NETWORK).seconds for way in (ring, tree))
    found["of_gradients"] = min(found[way]["us"] for way in ("ring", "tree")) / 1e6 / gradients
    found["host_us"], found["host_bytes"] = host(ranks)
    return found


def host(ranks: int) -> tuple[float, int]:
    """Host time (µs) and memory (bytes) for reading the whole table as rows of numbers."""
    table = torch.rand(TableLayout(ranks, 0).floats)
    spent = []
    for _ in range(20):
        began = time.perf_counter()
        numbers = table.tolist()
        rows = [numbers[at : at + SLOTS] for at in range(0, len(numbers), SLOTS)]
        spent.append(time.perf_counter() - began)
    del numbers, rows
    tracemalloc.start()
    kept = table.tolist()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == table.numel()
    return 1e6 * statistics.median(spent), most


# 3. Files.


def write_run(path: Path, ranks: int, steps: int, *, full_ranks: int) -> None:
    rng = np.random.default_rng(0)
    signals = {name: Signal() for name in ("loss", "grad_norm", "lr", "step_time_s")}
    signals |= {f"rank/{name}": Signal(every=10) for name in COLUMNS}
    axes = {"rank": tuple(map(str, range(ranks)))}
    losses = np.round(2 * np.exp(-np.arange(steps) / steps) + rng.normal(0, 0.01, steps), 6)
    for rank in range(ranks):
        writer = RunDirWriter(path, rank=rank, notify=sys.exit, full_ranks=full_ranks)
        writer.write(Header("headway", signals, axes, world_size=ranks, rank=rank))
        for step in range(steps):
            values = {"loss": losses[step], "grad_norm": 1.25, "lr": 0.001, "step_time_s": 0.5}
            columns = {}
            if rank == 0 and step % 10 == 0:
                columns = {
                    f"rank/{name}": Column(np.round(rng.uniform(1, 1.1, ranks), 6).tolist())
                    for name in COLUMNS
                }
            writer.write(StepRecord(0, step + 1, step, values, columns, rank=rank))
        writer.flush()


READ = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({OPEN_FILES}, {OPEN_FILES}))
try:
    runpy.run_module("headway", run_name="__main__")
finally:
    [peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(peak, file=sys.stderr)
"""


def diagnose(path: Path) -> dict[str, Any]:
    """Time and memory of the command, with few open files allowed."""
    command = [sys.executable, "-c", READ, "diagnose", str(path), "--format", "json"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    peak = int(done.stderr.split()[-1])
    return {
        "seconds": seconds,
        "mib": peak / 1024,
        "verdict": json.loads(done.stdout)["verdict"],
    }


def files(ranks: int, steps: int) -> list[dict[str, Any]]:
    found = []
    for name, full_ranks in (("one rank", 1), ("as written", 64), ("every rank", ranks)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            write_run(path, 1 if name == "one rank" else ranks, steps, full_ranks=full_ranks)
            sizes = [item.stat().st_size for item in path.iterdir()]
            size, count = sum(sizes), len(sizes)
            result = diagnose(path)
        found.append({"written_by": name, "files": count, "bytes": size, **result})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--files", type=int, default=1000, help="ranks of the run directory")
    parser.add_argument("--quick", action="store_true", help="fewer steps, for a quick run")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rank, world, meeting, steps = options.worker
        worker(int(rank), int(world), meeting, int(steps))
        return
    print(f"CPU, {platform.machine()}; torch {torch.__version__}; {SLOTS} numbers a rank and step")
    measured = [measure(world, 40 if options.quick else 300) for world in (2, 4)]
    for row in measured:
        print(f"\n{row['ranks']} processes, gloo, a plain step of {row['plain_ms']:.1f} ms:")
        for name, found in row["variants"].items():
            print(
                f"  {name:18} {found['ratio']:.3f} of it; {found['messages']:.0f} messages and "
                f"{found['bytes']:.0f} bytes more a rank (payload {row['payload_bytes']:.0f}), "
                f"{found['bytes'] / row['bytes_of_gradients']:.1e} of what the gradients send"
            )
    simulated = [simulate(ranks) for ranks in (8, 1000, 16000)]
    for row in simulated:
        print(f"\n{row['ranks']} ranks, simulated: a vector of {row['bytes']:,} bytes")
        for way in ("ring", "tree"):
            seen = row[way]
            print(
                f"  {way}: {seen['us']:10.0f} µs ({seen['simulated_over_closed']:.3f} of it by "
                f"events; {seen['us_after_the_last_rank_came']:.0f} µs after the last of ranks "
                f"that come late); the busiest rank sends {seen['busiest_rank_sends']} messages"
            )
        print(
            f"  the better one is {row['of_gradients']:.1e} of reducing 14 GB of gradients; "
            f"reading the table costs the host {row['host_us']:.0f} µs, {row['host_bytes']:,} bytes"
        )
    steps = 50 if options.quick else 200
    directories = files(options.files, steps)
    print(f"\na run directory of {options.files} ranks and {steps} steps:")
    alone = directories[0]
    for row in directories:
        print(
            f"  {row['written_by']:10} {row['files']:6} files {row['bytes']:12,} bytes; diagnose: "
            f"{row['seconds']:6.1f} s ({row['seconds'] / alone['seconds']:.1f} of one rank), "
            f"{row['mib']:.0f} MiB ({row['mib'] / alone['mib']:.2f}), {row['verdict']}"
        )
    if options.json:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"CPU, {platform.machine()}",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "slots": SLOTS,
            "network": {"alpha_s": NETWORK.alpha, "bytes_per_s": 1 / NETWORK.beta},
            "measured": measured,
            "simulated": simulated,
            "directories": directories,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
