"""Cost that a guard adds for 8 to 4,096 ranks: collectives, bytes, sockets, files.

    python benchmarks/ranks_scale.py [--measure 2 4 8 16 64] [--json FILE] [--write]

Measured with real processes (gloo, DDP, one process per rank) for the sizes of `--measure`, and by
formula for others. The script stops if a formula differs from a measurement. `--write` writes the
table to docs/ranks.md.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import torch.distributed as dist
from _reductions import Network, ring, tree
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.guard.ranks.rank_table import MAX_TABLE_RANKS, RankField, TableLayout
from headway.rundir.writer import FULL_RANKS

ROOT = Path(__file__).resolve().parents[1]
SIZES = (8, 64, 256, 1024, 4096)
STEPS, BAD = 14, 7
COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "all_gather_object", "barrier")
NETWORK = Network(alpha=5e-6, beta=1 / 25e9)
"""Assumed: 5 µs a message and 25 GB/s a link, one 200 Gbit/s adapter."""
GRADIENT = 2 * 7_000_000_000
"""Bytes of the gradients of a model of 7 billion parameters in bf16."""
BEGIN, END = "<!-- table of ranks_scale.py -->", "<!-- end of the table -->"


# Measured.


class CollectiveCounter:
    """Counts the calls of collectives, and the bytes of the largest all-reduce.

    In shared memory: a re-run restores every Python object that its step has changed.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._numbers = memoryview(self._memory).cast("q")
        for at, name in enumerate(COLLECTIVES):
            setattr(dist, name, self._counted(at, getattr(dist, name)))

    def _counted(self, at: int, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("async_op"):  # those are gradients, which DDP reduces anyway
                self._numbers[at] += 1
                if at == 0:
                    size = args[0].numel() * args[0].element_size()
                    self._numbers[len(COLLECTIVES)] = max(self._numbers[len(COLLECTIVES)], size)
            return original(*args, **kwargs)

        return call

    def take(self) -> tuple[dict[str, int], int]:
        calls = {name: n for at, name in enumerate(COLLECTIVES) if (n := self._numbers[at])}
        largest = self._numbers[len(COLLECTIVES)]
        for at in range(len(COLLECTIVES) + 1):
            self._numbers[at] = 0
        return calls, largest


def sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return found


def work(rank: int, size: int, folder: str, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=size)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.zero_grad()
    dist.barrier()
    seen: dict[str, Any] = {"sockets": {"before": sockets()}}
    counter = CollectiveCounter()
    began = time.perf_counter()
    guard = headway.Guard(model, optimizer, run_dir=f"{folder}/run")
    seen["guard_s"] = time.perf_counter() - began
    seen["start"] = counter.take()[0]
    seen["sockets"]["guarded"] = sockets()
    batches = [torch.ones(4, 8) for _ in range(STEPS)]
    if rank == size - 1:
        batches[BAD][1, 2] = math.nan
    steps = []
    for batch in guard(batches):
        if not guard.replaying and len(steps) < STEPS:
            steps.append(counter.take())
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps.append(counter.take())
    seen["steps"] = steps[1:]
    seen["sockets"]["after the bad step"] = sockets()
    seen["culprits"] = [item.where.rank for item in guard.findings if item.code == "HD602"]
    guard.close()
    dist.barrier()
    seen["sockets"]["closed"] = sockets()
    if rank == 0:
        seen["files"] = len([*Path(folder, "run").glob("*.json*")])
    results.put((rank, seen))
    dist.destroy_process_group()


def measure(size: int) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")  # torch is imported once
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        members = [
            context.Process(target=work, args=(rank, size, folder, results)) for rank in range(size)
        ]
        for member in members:
            member.start()
        found = dict(results.get(timeout=1800) for _ in range(size))
        for member in members:
            member.join()
    first = found[0]
    good = [calls for at, (calls, _) in enumerate(first["steps"]) if at not in (BAD, BAD + 1)]
    bad = Counter(first["steps"][BAD][0])  # the re-run comes before the next batch
    return {
        "ranks": size,
        "start": first["start"],
        "good_step": {name: max(step.get(name, 0) for step in good) for name in COLLECTIVES},
        "bad_step": dict(bad),
        "reduced_bytes": max(largest for _, largest in first["steps"][:BAD]),
        "sockets": first["sockets"],
        "files": first["files"],
        "culprit_named": first["culprits"] == [size - 1],
        "guard_s": first["guard_s"],
    }


# By formula.


def formula(size: int) -> dict[str, Any]:
    layout = TableLayout(size, 0)
    reduced = layout.floats * (4 if layout.complete else 8)
    return {
        "ranks": size,
        "reduced_bytes": reduced,
        "sockets_guarded": 0,
        "sockets_after_a_bad_step": size,  # one to every other rank, and one that listens
        "files": 1 + 2 * min(size, FULL_RANKS),
        "ring_s": ring(size, reduced, NETWORK).seconds,
        "tree_s": tree(size, reduced, NETWORK).seconds,
        "share_of_gradients": reduced / GRADIENT,
    }


def compare(found: dict[str, Any]) -> None:
    """Stop if a formula differs from the measurement with real processes."""
    expected, sockets_of = formula(found["ranks"]), found["sockets"]
    same = {
        "one collective a good step": sum(found["good_step"].values()) == 1,
        "bytes": found["reduced_bytes"] == expected["reduced_bytes"],
        "no socket for a guard": sockets_of["guarded"] == sockets_of["before"],
        "sockets after a bad step": sockets_of["after the bad step"] - sockets_of["before"]
        == expected["sockets_after_a_bad_step"],
        "sockets after close()": sockets_of["closed"] == sockets_of["before"],
        "files": found["files"] == expected["files"],
        "culprit": found["culprit_named"],
    }
    wrong = [name for name, holds in same.items() if not holds]
    if wrong:
        raise SystemExit(f"{found['ranks']} ranks differ from the formula in {wrong}: {found}")


def say_bytes(count: float) -> str:
    return f"{count:,.0f} B"


def page(measured: list[dict[str, Any]]) -> str:
    rows = [formula(size) for size in SIZES]

    def line(name: str, values: list[str]) -> str:
        return f"| {name} | {' | '.join(values)} |"

    above = {found["ranks"]: found for found in measured}
    text = [
        line("ranks", [f"{row['ranks']:,}" for row in rows]),
        "|---" * (len(rows) + 1) + "|",
        line("collectives the guard adds to a good step", ["1"] * len(rows)),
        line("bytes in it", [say_bytes(row["reduced_bytes"]) for row in rows]),
        line("time, tree", [f"{row['tree_s'] * 1e6:,.0f} µs" for row in rows]),
        line("time, ring", [f"{row['ring_s'] * 1e3:,.2f} ms" for row in rows]),
        line(
            "bytes ÷ gradients of 7 billion parameters",
            [f"{row['share_of_gradients']:.1e}" for row in rows],
        ),
        line("sockets of a rank for the guard, before that", ["0"] * len(rows)),
        line(
            "sockets from the first re-run step or snapshot on disk to `close()`",
            [f"{row['sockets_after_a_bad_step']:,}" for row in rows],
        ),
        line("files of lines in the run directory", [str(row["files"]) for row in rows]),
        "",
        "Measured with real processes:",
        "",
        line("ranks", [str(size) for size in above]),
        "|---" * (len(above) + 1) + "|",
    ]
    cells = {
        "collectives when the guard is created": lambda found: sum(found["start"].values()),
        "collectives of a good step": lambda found: sum(found["good_step"].values()),
        "bytes in it": lambda found: f"{found['reduced_bytes']:,}",
        "collectives of a bad step that is run again": lambda found: " + ".join(
            f"{count} `{name}`" for name, count in found["bad_step"].items()
        ),
        "sockets: before, guarded, after the bad step, closed": lambda found: ", ".join(
            str(count) for count in found["sockets"].values()
        ),
        "files of lines": lambda found: found["files"],
        "the bad rank is named": lambda found: "yes" if found["culprit_named"] else "no",
    }
    for name, cell in cells.items():
        text.append(line(name, [str(cell(found)) for found in above.values()]))
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    measured = []
    for size in chosen.measure:
        measured.append(measure(size))
        compare(measured[-1])
        print(json.dumps(measured[-1]), flush=True)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "numbers_per_rank": len(RankField),
        "rows": MAX_TABLE_RANKS,
        "formula": [formula(size) for size in SIZES],
        "measured": measured,
    }
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    text = page(measured)
    print(text)
    if chosen.write:
        target = ROOT / "docs" / "ranks.md"
        before, rest = target.read_text().split(BEGIN)
        target.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
