"""Cost of the guard in small trainings: `headway run` and `Guard` against the plain script.

    python benchmarks/small_models.py                        # all trainings
    python benchmarks/small_models.py --only gan             # those whose name contains this text
    python benchmarks/small_models.py --before ../old/src    # the same, and another source tree

The trainings of `_small_trainings.py` have the shape of public example scripts. Each variant is a
separate process, so that a plain step runs none of our code; they alternate, a few steps each, and
only one runs at a time. The processor time of a round is divided by that of the plain variant in
the same round, and the median over rounds is printed. It is the time of all threads, after the
first steps.

The counts are exact: Python opcodes, Python calls and files of ours per step, beyond those of the
plain script. They are counted afterwards over 64 steps, among which 6 or 7 are sampled.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from _small_trainings import TRAININGS

HERE = Path(__file__).resolve()
WARM_UP = 40
"""Steps before the first measured one: a guard examines the first 16 more closely."""
COUNTED = 64
ROUND_S = 0.03
"""Processor time of the plain variant in one round, about."""


class Counter:
    """Counts what the interpreter executes, and which files of headway it enters."""

    def __init__(self) -> None:
        self.opcodes = self.calls = 0
        self.files: set[str] = set()

    def enter(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name == str(HERE):
            return None
        self.calls += 1
        if "/headway/" in name:
            self.files.add(name)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.execute

    def execute(self, frame: FrameType, event: str, _: Any) -> Any:
        self.opcodes += event == "opcode"
        return self.execute


class PipeSession:
    """Runs the number of steps requested through a pipe, and answers with their cost."""

    def __init__(self, commands: Any, answers: Any, folder: str | None) -> None:
        """`folder`: where a `Guard` records; None for the plain script and for `run`."""
        self._commands, self._answers, self._folder = commands, answers, folder
        self._left, self._began = 0, 0.0
        self._counter: Counter | None = None
        self._over = False
        self._next()

    def watch(self, model: Any, optimizer: Any) -> Callable[[Iterable[Any]], Iterable[Any]]:
        if self._folder is None:
            return lambda batches: batches
        from headway import Guard

        return Guard(model, optimizer, run_dir=self._folder)

    def epochs(self) -> Iterator[int]:
        return itertools.count()

    def step_done(self) -> bool:
        self._left -= 1
        if not self._left:
            spent = time.process_time() - self._began
            sys.settrace(None)
            answer: dict[str, Any] = {"seconds": spent}
            if self._counter is not None:
                answer |= {
                    "opcodes": self._counter.opcodes,
                    "calls": self._counter.calls,
                    "files": len(self._counter.files),
                }
            self._answers.write(json.dumps(answer) + "\n")
            self._answers.flush()
            self._next()
        return self._over

    def _next(self) -> None:
        kind, _, number = self._commands.readline().strip().partition(" ")
        self._left, self._over = int(number or 0), not kind or kind == "end"
        self._counter = Counter() if kind == "count" else None
        if self._counter is not None:
            sys.settrace(self._counter.enter)
        self._began = time.process_time()


def train(name: str, commands: int, answers: int, folder: str | None) -> None:
    torch.manual_seed(0)
    with open(commands) as reader, open(answers, "w") as writer:
        TRAININGS[name](PipeSession(reader, writer, folder))


class Variant:
    """A training in a process of its own."""

    def __init__(self, training: str, how: str, source: Path, folder: Path) -> None:
        """`how`: `plain`, `run` or `guard`; `source`: the tree whose headway is used."""
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            for end in (self._write, self._read):
                os.close(end)
            self._work(training, how, source, folder, commands, answers)
        for end in (commands, answers):
            os.close(end)
        self._commands, self._answers = open(self._write, "w"), open(self._read)  # noqa: SIM115

    @staticmethod
    def _work(
        training: str, how: str, source: Path, folder: Path, commands: int, answers: int
    ) -> None:
        sys.path.insert(0, str(source))
        silent = os.open(folder.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            if how == "run":
                from headway.cli.main import cli

                given = ["--train", training, str(commands), str(answers)]
                cli.main(["run", "--out", str(folder), str(HERE), "--", *given])
            else:
                train(training, commands, answers, str(folder) if how == "guard" else None)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(0)

    def ask(self, command: str, steps: int) -> dict[str, Any]:
        self._commands.write(f"{command} {steps}\n")
        self._commands.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("a training ended early")
        found: dict[str, Any] = json.loads(answer)
        return found

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._commands.write("end 0\n")
            self._commands.close()
        os.waitpid(self.pid, 0)
        self._answers.close()


def measure(training: str, sources: dict[str, Path], rounds: int) -> dict[str, Any]:
    kinds = [("plain", "plain", next(iter(sources.values())))]
    kinds += [(f"{how}{tag}", how, at) for tag, at in sources.items() for how in ("run", "guard")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times: dict[str, list[float]] = {label: [] for label, _, _ in kinds}
        with contextlib.ExitStack() as stack:
            variants = {}
            for label, how, source in kinds:
                variants[label] = Variant(training, how, source, folder / label)
                stack.callback(variants[label].end)
            first = {label: variant.ask("steps", WARM_UP) for label, variant in variants.items()}
            steps = max(2, int(ROUND_S / (first["plain"]["seconds"] / WARM_UP)))
            order = list(variants)
            for turn in range(rounds):
                for label in order[turn % len(order) :] + order[: turn % len(order)]:
                    spent = variants[label].ask("steps", steps)["seconds"]
                    times[label].append(spent / steps)
            counts = {label: variant.ask("count", COUNTED) for label, variant in variants.items()}
    return {
        "training": training,
        "ms": {label: 1e3 * statistics.median(found) for label, found in times.items()},
        "ratio": {
            label: statistics.median(a / b for a, b in zip(found, times["plain"], strict=True))
            for label, found in times.items()
        },
        "first_steps_s": {label: found["seconds"] for label, found in first.items()},
        **{
            what: {
                label: (found[what] - counts["plain"][what]) / COUNTED
                for label, found in counts.items()
            }
            for what in ("opcodes", "calls")
        },
        "files": {label: found["files"] for label, found in counts.items()},
    }


def show(results: list[dict[str, Any]]) -> None:
    labels = [label for label in results[0]["ratio"] if label != "plain"]
    print(f"\n{'':24}{'plain':>10}" + "".join(f"{label:>14}" for label in labels))
    for found in results:
        row = f"{found['training']:24}{found['ms']['plain']:7.2f} ms"
        print(row + "".join(f"{found['ratio'][label]:14.3f}" for label in labels))
    for what, form in (("ratio", ".3f"), ("opcodes", ".0f"), ("calls", ".0f"), ("files", ".0f")):
        values = {label: [found[what][label] for found in results] for label in labels}
        row = "".join(f"{statistics.median(values[label]):14{form}}" for label in labels)
        print(f"{'median of ' + what:34}{row}")
        if what == "ratio":
            row = "".join(f"{max(values[label]):14{form}}" for label in labels)
            print(f"{'highest ratio':34}{row}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="trainings whose name holds this text")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--before", type=Path, help="the `src` of another version to compare with")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.train:
        name, commands, answers = options.train
        train(name, int(commands), int(answers), None)
        return
    sources = {} if options.before is None else {" before": options.before.resolve()}
    sources[""] = HERE.parents[1] / "src"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, CPU only"
    print(f"{machine}; torch {torch.__version__}; Python {platform.python_version()}")
    results = []
    for name in (name for name in TRAININGS if options.only in name):
        results.append(measure(name, sources, options.rounds))
        print(f"{name}: " + json.dumps(results[-1]["ratio"]), file=sys.stderr, flush=True)
        if options.json:
            save(options.json, machine, results)
    show(results)


def save(path: Path, machine: str, results: list[dict[str, Any]]) -> None:
    """Written after each training, so that an interrupted run is not lost."""
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine,
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": 1,
        "median": {
            what: {
                label: statistics.median(found[what][label] for found in results)
                for label in results[0][what]
            }
            for what in ("ratio", "opcodes", "calls", "files")
        },
        "results": results,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
