"""What `headway check` costs: the steps of a script under check, against the same steps alone.

    python benchmarks/check_cost.py [--steps 300] [--rounds 3] [--only nanogpt] [--json FILE]

The five longer scripts of the corpus, written as people publish them, and a transformer of 44
million parameters, of which only the first steps are checked. Measures processor time, from the
creation of the first optimizer to the last step, and under check to the end of the report. Imports
and the creation of data are not counted. Alone, the script runs with only a counter that stops it
after the same number of steps. The two alternate, each in a separate process.

A check examines the first steps most closely: the fewer steps there are, the more each one costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import torch._dynamo  # optimizers import it when they first step: not counted, in either
from support.corpus_runs import entries
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

import headway
from headway import registry
from headway.preflight.observers import all_observers
from headway.preflight.runner import run_check

LIMIT = 3.0
"""Claimed limit: time relative to the plain steps, median over the corpus scripts."""
LARGE = Path(__file__).with_name("transformer_44m.py")
LARGE_STEPS = 6
LARGE_LIMIT = 6.0
"""The same for the large model, in its first steps."""


class Enough(BaseException):
    """All steps are done."""


class Clock:
    """Starts when the first optimizer is created."""

    def __init__(self) -> None:
        self.began: float | None = None
        make = Optimizer.__init__

        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            if self.began is None:
                self.began = time.process_time()
            make(optimizer, *args, **kwargs)

        Optimizer.__init__ = made  # type: ignore[method-assign]

    def seconds(self) -> float:
        assert self.began is not None, "the script created no optimizer"
        return time.process_time() - self.began


def alone(script: Callable[[], Any], steps: int) -> None:
    """The script with a counter."""
    made: dict[int, int] = {}

    def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        made[id(optimizer)] = made.get(id(optimizer), 0) + 1
        if made[id(optimizer)] >= steps:
            raise Enough

    register_optimizer_step_post_hook(count)
    with contextlib.suppress(Enough):
        script()


def checked(script: Callable[[], Any], steps: int) -> None:
    """The script under check, and the report."""
    done = run_check(script, max_steps=steps)
    if done.error is not None:
        raise done.error
    done.report.to_dict()


VARIANTS = {"alone": alone, "checked": checked}


def measure(script: Path, steps: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name in VARIANTS:
            seconds[name].append(_apart(script, name, steps))
    ratios = [a / b for a, b in zip(seconds["checked"], seconds["alone"], strict=True)]
    return {
        "script": script.name,
        "steps": steps,
        "seconds": {name: statistics.median(found) for name, found in seconds.items()},
        "ratio": statistics.median(ratios),
    }


def _apart(script: Path, variant: str, steps: int) -> float:
    """Seconds, in a process that has only imported torch."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(script, variant, steps, theirs)
    )
    process.start()
    theirs.close()
    try:
        seconds: float = ours.recv()
    except EOFError:
        raise RuntimeError(f"{script.name}, {variant}: it did not finish") from None
    finally:
        process.join()
    return seconds


def _run(script: Path, variant: str, steps: int, connection: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    clock = Clock()
    VARIANTS[variant](lambda: runpy.run_path(str(script), run_name="__main__"), steps)
    connection.send(clock.seconds())


def show(found: dict[str, Any], more: str = "") -> None:
    seconds = found["seconds"]
    print(
        f"{found['script']:26} {found['steps']:6} {seconds['alone']:7.2f} s "
        f"{seconds['checked']:7.2f} s {found['ratio']:7.2f}{more}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="steps of each script (default: the corpus's)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a script's name")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    registry.all_checks(), all_observers()  # imported here, for both
    chosen = [item for item in entries() if item.family == "public" and args.only in item.file]
    results = []
    print(f"{'':26} {'steps':>6} {'alone':>9} {'checked':>9} {'ratio':>7}")
    scripts = [(entry.path, args.steps or entry.steps) for entry in chosen]
    for script, steps in scripts:
        results.append(measure(script, steps, args.rounds))
        show(results[-1])
    median = statistics.median(item["ratio"] for item in results) if results else None
    if median is not None:
        print(f"{'median':26} {'':6} {'':9} {'':9} {median:7.2f}   limit {LIMIT:g}", flush=True)
    large = None
    if args.only in LARGE.name:
        large = measure(LARGE, LARGE_STEPS, args.rounds)
        show(large, f"   limit {LARGE_LIMIT:g}")
    if args.json:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "headway": headway.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, CPU only, one thread",
            "limit": LIMIT,
            "median": median,
            "scripts": results,
            "large_limit": LARGE_LIMIT,
            "large": large,
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
