"""Mutated files through every reader: no traceback, no hang, no file written, nothing executed.

    python tests/fuzz/run.py --count 200000 [--seed 0] [--jobs 2] [--only READER] [--json FILE]

Exits with 1 if a reader did anything but read or refuse. The inputs it failed on are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SRC = HERE.parents[1] / "src"
PEAK_MEGABYTES = 512


def fuzz(
    count: int,
    *,
    seed: int = 0,
    jobs: int = 1,
    only: str | None = None,
    deep: int = 40,
    minutes: float = 0,
    kept: Path | None = None,
) -> dict[str, Any]:
    """The counts of all jobs together."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        seeds, mark = root / "seeds", root / "mark"
        kept = kept or Path(tempfile.gettempdir()) / "headway-fuzz"
        environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
        program = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import seeds; "
        program += "seeds.make(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))"
        making = [sys.executable, "-W", "ignore", "-c", program, str(HERE), str(seeds), str(mark)]
        subprocess.run(making, check=True, env=environment, capture_output=True)
        running = []
        for job in range(jobs):
            result = root / f"result{job}.json"
            share = count // jobs + (job < count % jobs)
            called = [
                sys.executable,
                "-W",
                "ignore",
                str(HERE / "worker.py"),
                str(seeds),
                str(result),
            ]
            called += ["--count", str(share), "--seed", str(seed * 1000 + job), "--deep", str(deep)]
            called += ["--mark", str(root / f"mark{job}"), "--kept", str(kept)]
            called += ["--minutes", str(minutes), "--scratch", str(root)]
            called += ["--only", only] if only else []
            running.append((subprocess.Popen(called, env=environment), result))
        for process, _ in running:
            if process.wait() != 0:
                raise RuntimeError(f"a worker ended with {process.returncode}")
        if mark.exists():
            raise RuntimeError("code of a seed was run")
        return _together([json.loads(result.read_text()) for _, result in running])


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    counts, refused = Counter[str](), Counter[str]()
    for part in parts:
        counts.update(part["counts"])
        refused.update(part["refused"])
    return {
        "inputs": sum(counts.values()),
        "counts": dict(sorted(counts.items())),
        "refused": dict(sorted(refused.items())),
        "wrong": [item for part in parts for item in part["wrong"]],
        "slowest": max(part["slowest"] for part in parts),
        "peak_megabytes": max(part["peak_megabytes"] for part in parts),
        "torch_imported": any(part["torch_imported"] for part in parts),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--deep", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=0, help="end after so long; 0: never")
    parser.add_argument("--only", help="one reader")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = fuzz(
        options.count,
        seed=options.seed,
        jobs=options.jobs,
        only=options.only,
        deep=options.deep,
        minutes=options.minutes,
    )
    for reader, number in found["counts"].items():
        print(f"{reader:22} {number:8}  refused {found['refused'].get(reader, 0)}")
    print(f"{'all':22} {found['inputs']:8}  wrong {len(found['wrong'])}")
    print(f"slowest {found['slowest'][0]:.2f} s ({found['slowest'][1]})", end="; ")
    print(f"peak {found['peak_megabytes']:.0f} MB (limit {PEAK_MEGABYTES})")
    for item in found["wrong"][:20]:
        print(f"\n{item['reader']}: {item['said']}\n  kept in {item['kept']}")
    if options.json is not None:
        facts = {"python": platform.python_version(), "seed": options.seed, "jobs": options.jobs}
        options.json.write_text(json.dumps({**facts, **found}, indent=2) + "\n")
    fine = not found["wrong"] and found["peak_megabytes"] < PEAK_MEGABYTES
    return 0 if fine and not found["torch_imported"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
