"""Time and memory of a post-mortem: checkpoints, long logs, event files.

    python benchmarks/postmortem.py [--part scan] [--gigabytes 2] [--rows 1000000] [--json FILE]

`scan`: a checkpoint of float32 weights and Adam's moments, some of it bfloat16, in the page cache.
Three ways, each in a fresh process: reading the bytes in the same chunks; headway's scan, whole
(open, locate, measure every tensor); `torch.load(mmap=True)` and `isfinite` of every tensor. The
first ratio excludes the start of the interpreter; the second includes it and the imports, as a
user experiences it.

`log`: a JSON-lines log of a million steps with four numbers each and a NaN near the end. Parsing it
alone (`json.loads` of every line) against the diagnosis, whole: reading, screening, every check.

`tensorboard`: see `tensorboard_reading.py`; left out where tensorboard is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SRC = str(Path(__file__).resolve().parents[1] / "src")

SLOWER_THAN_READING = 1.5
FASTER_THAN_TORCH = 5.0
PEAK_MEGABYTES = 300
SLOWER_THAN_PARSING = 2.0

_READ = """
import sys, time, resource
t = time.perf_counter()
buffer = memoryview(bytearray(1 << 19))
with open(sys.argv[1], "rb", buffering=0) as file:
    while file.readinto(buffer):
        pass
print(time.perf_counter() - t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
_SCAN = """
import sys, time, resource
from pathlib import Path
from headway.checkpoints.checkpoint_records import records
import headway.checkpoints.tensor_statistics
t = time.perf_counter()
count = sum(1 for record in records([Path(sys.argv[1])]))
spent = time.perf_counter() - t
assert "torch" not in sys.modules
print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, count)
"""
_TORCH = """
import sys, time, resource
import torch
t = time.perf_counter()
def every(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inside in value.values():
            yield from every(inside)
loaded = torch.load(sys.argv[1], mmap=True, map_location="cpu")
bad = [not torch.isfinite(tensor).all() for tensor in every(loaded)]
assert not any(bad)
print(time.perf_counter() - t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
_PARSE = """
import json, sys, time, resource
t = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    for line in file:
        json.loads(line)
print(time.perf_counter() - t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
_DIAGNOSE = """
import sys, time, resource
import headway, headway.registry, headway.logs.readers, headway.logs.log_stream
headway.registry.all_checks(), headway.logs.readers.readers()
t = time.perf_counter()
report = headway.diagnose(sys.argv[1])
spent = time.perf_counter() - t
assert [item.code for item in report.causes] == ["HD101"], report.causes
assert report.findings[-1].step == int(sys.argv[2]), report.findings
print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def make_checkpoint(path: str, gigabytes: float) -> None:
    """A file of torch.save of about that size."""
    import torch

    torch.manual_seed(0)
    wide = 2048
    block = 4 * (wide * wide * 4 * 3)  # four matrices in float32: weights and two moments
    blocks = max(int(gigabytes * 2**30 / (block + block // 6)), 1)
    base = torch.randn(wide, wide) * 0.02
    state: dict[str, Any] = {"model": {}, "ema": {}, "optimizer": {"state": {}, "param_groups": []}}
    for number in range(4 * blocks):
        state["model"][f"layers.{number}.weight"] = base + number * 1e-4
        state["ema"][f"layers.{number}.weight"] = (base + number * 1e-4).bfloat16()
        state["optimizer"]["state"][number] = {
            "step": torch.tensor(100.0),
            "exp_avg": base * 1e-3,
            "exp_avg_sq": base.square() * 1e-6,
        }
    torch.save(state, path)


def make_log(path: Path, rows: int) -> int:
    """A long healthy run that becomes NaN; returns the step at which it does."""
    rng = random.Random(0)
    bad = rows - rows // 50
    with open(path, "w") as file:
        for step in range(rows):
            loss = (10 / (1 + step / 2000) ** 0.3 + 0.05 * rng.gauss(0, 1)) if step < bad else "NaN"
            norm = 1.2 + 0.2 * abs(rng.gauss(0, 1)) if step < bad else "NaN"
            rate = 3e-4 * min(1.0, (step + 1) / 2000)
            row = {"step": step, "loss": loss, "grad_norm": norm, "lr": rate}
            file.write(json.dumps(row).replace('"NaN"', "NaN") + "\n")
    return bad


def timed(program: str, path: Path, *others: str) -> tuple[float, float, float]:
    """(seconds inside, total seconds, peak megabytes) of a program in a separate process."""
    environment = {**os.environ, "PYTHONPATH": SRC}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), *others],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    whole = time.perf_counter() - began
    inside, peak, *_ = done.stdout.split()
    return float(inside), whole, int(peak) / 1024


def best(program: str, path: Path, rounds: int, *others: str) -> tuple[float, float, float]:
    """The fastest of some rounds; the highest peak."""
    runs = [timed(program, path, *others) for _ in range(rounds)]
    return min(r[0] for r in runs), min(r[1] for r in runs), max(r[2] for r in runs)


def scan(options: argparse.Namespace) -> dict[str, Any]:
    """A checkpoint, three ways."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        # In a process of its own: its memory would count as that of every process it starts.
        code = f"import postmortem; postmortem.make_checkpoint({str(path)!r}, {options.gigabytes})"
        here = Path(__file__).resolve().parent
        subprocess.run([sys.executable, "-c", code], cwd=here, check=True)
        size = path.stat().st_size
        timed(_READ, path)  # into the page cache
        reading = best(_READ, path, options.rounds)
        ours = best(_SCAN, path, options.rounds)
        torchs = best(_TORCH, path, options.rounds)
    result = {
        "bytes": size,
        "read_seconds": reading[0],
        "scan_seconds": ours[0],
        "scan_whole_seconds": ours[1],
        "torch_whole_seconds": torchs[1],
        "scan_to_read": ours[0] / reading[0],
        "torch_to_scan": torchs[1] / ours[1],
        "peak_megabytes": ours[2],
        "torch_peak_megabytes": torchs[2],
    }
    print(f"checkpoint of {size / 2**30:.2f} GiB")
    print(f"  reading the bytes           {reading[0]:6.2f} s")
    print(f"  headway scan               {ours[0]:6.2f} s, {ours[1]:.2f} s with the interpreter")
    print(f"  torch.load(mmap) + isfinite {torchs[1]:6.2f} s with the interpreter")
    print(f"  scan / read   {result['scan_to_read']:.2f}  (claim: at most {SLOWER_THAN_READING})")
    print(f"  torch / scan  {result['torch_to_scan']:.2f}  (claim: at least {FASTER_THAN_TORCH})")
    print(
        f"  peak memory   {ours[2]:.0f} MB  (claim: below {PEAK_MEGABYTES}; torch {torchs[2]:.0f})"
    )
    result["kept"] = (
        result["scan_to_read"] <= SLOWER_THAN_READING
        and result["torch_to_scan"] >= FASTER_THAN_TORCH
        and ours[2] < PEAK_MEGABYTES
    )
    return result


def log(options: argparse.Namespace) -> dict[str, Any]:
    """A long log, parsed and diagnosed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        bad = make_log(path, options.rows)
        timed(_PARSE, path)  # into the page cache
        parsing = best(_PARSE, path, options.rounds)
        ours = best(_DIAGNOSE, path, options.rounds, str(bad))
    ratio = ours[0] / parsing[0]
    print(f"log of {options.rows:,} steps")
    print(f"  parsing it alone            {parsing[0]:6.2f} s")
    print(f"  headway diagnose           {ours[0]:6.2f} s, peak memory {ours[2]:.0f} MB")
    print(f"  diagnose / parse {ratio:.2f}  (claim: at most {SLOWER_THAN_PARSING})")
    return {
        "rows": options.rows,
        "parse_seconds": parsing[0],
        "diagnose_seconds": ours[0],
        "diagnose_to_parse": ratio,
        "peak_megabytes": ours[2],
        "kept": ratio <= SLOWER_THAN_PARSING,
    }


def event_file(options: argparse.Namespace) -> dict[str, Any]:
    """An event file, against TensorBoard's own reader."""
    if importlib.util.find_spec("tensorboard") is None:
        print("tensorboard is not installed: skipped")
        return {"kept": True, "left_out": "tensorboard is not installed"}
    sys.path.insert(0, SRC)
    import tensorboard_reading

    found = tensorboard_reading.measure(tensorboard_reading.POINTS, options.rounds)
    print(f"event file of {found['points']:,} points")
    print(f"  TensorBoard's own reader    {found['theirs_s']:6.2f} s")
    print(f"  headway                    {found['ours_s']:6.2f} s, none lost: {found['none_lost']}")
    print(f"  {found['times_faster']} times faster  (claim: at least {found['limit']:g})")
    kept = found["none_lost"] and found["times_faster"] >= found["limit"]
    return {**found, "kept": kept}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "scan": scan,
    "log": log,
    "tensorboard": event_file,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", choices=sorted(PARTS), action="append")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    for part in options.part or PARTS:
        results[part] = PARTS[part](options)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(results[part]["kept"] for part in options.part or PARTS) else 1


if __name__ == "__main__":
    raise SystemExit(main())
