"""How long Python takes to start, with `import headway` and with a command on top.

    python benchmarks/startup.py [--runs 7] [--json FILE]

Each program runs in a fresh process; the fastest run counts, because other processes can only make
a run slower. Exits with 1 if importing headway takes more than MOST_EXTRA seconds longer than
starting Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

SRC = str(Path(__file__).resolve().parents[1] / "src")
MOST_EXTRA = 0.1
PROGRAMS = {
    "python": "pass",
    "import headway": "import headway",
    "headway explain HD101": "from headway.cli.main import main; main()",
}


def best_of(program: str, runs: int) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", program, "explain", "HD101"],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": SRC},
        )
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds = {name: best_of(program, options.runs) for name, program in PROGRAMS.items()}
    bare = seconds["python"]
    for name, took in seconds.items():
        print(f"{name:22} {took * 1000:6.0f} ms   {took / bare:5.2f} times python alone")
    if options.json:
        record = {"python": platform.python_version(), "seconds": seconds}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(seconds["import headway"] - bare > MOST_EXTRA)


if __name__ == "__main__":
    sys.exit(main())
