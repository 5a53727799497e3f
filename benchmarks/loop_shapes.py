"""Whether the line of a bad number is named whatever the loop looks like.

    python benchmarks/loop_shapes.py [--only recursion] [--command check|run|fix] [--json FILE]
    python benchmarks/loop_shapes.py --set q     # the second set: its names begin with q
    python benchmarks/loop_shapes.py --set r     # the third set

The scripts of corpus/origins: loops of many shapes, from a list comprehension to Lightning and
two ranks, each with one bad number. The line where it originates carries the mark `# <- origin`,
written before the script ran for the first time. Each runs unmodified, in a process of its own,
once under `headway check` and once under `headway run`. A line is
right if the first cause names it. Then `headway check --fix --unsafe` edits a copy: counted is how
many scripts get an edit that a fresh run confirmed, and in how many of these no finding of a bad
number is left. `--command healthy` does the same to the healthy version of each script
(corpus/origins/healthy.toml), which must stay as it is.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import platform
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import torch

import headway
from headway import registry
from headway.config import Settings
from headway.guard.script.guarded_run import run_guarded
from headway.integrations.automatic import run_with_callbacks
from headway.preflight.observers import all_observers
from headway.preflight.runner import run_check

SCRIPTS = Path(__file__).resolve().parents[1] / "corpus" / "origins"
MARK = "# <- origin"
STEPS = 6
TOGETHER = "_ranks_"
"""In the name of a script for two ranks."""
SECONDS = 240
BAD_NUMBERS = {"HD101", "HD201", "HD301", "HD302", "HD303", "HD313", "HD501"}


def marked_line(script: Path) -> int:
    lines = script.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if MARK in text)


def named_lines(report: dict[str, Any]) -> list[tuple[str, str | None, int | None]]:
    """(code, file, line) of the causes, most likely first."""
    first = [cause["code"] for cause in report["causes"]]
    findings = sorted(
        report["findings"],
        key=lambda item: first.index(item["code"]) if item["code"] in first else len(first),
    )
    return [
        (item["code"], item["where"].get("file"), item["where"].get("line")) for item in findings
    ]


def is_right(script: Path, report: dict[str, Any]) -> bool:
    """Whether the first cause that has a line has the marked one."""
    placed = [item for item in named_lines(report) if item[2] is not None]
    if not placed:
        return False
    _, file, line = placed[0]
    return Path(str(file)).name == script.name and line == marked_line(script)


def examine(script: Path, command: str) -> dict[str, Any]:
    """The report as plain data."""
    if TOGETHER in script.name:
        return _on_ranks(script, command)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(script, command, theirs)
    )
    process.start()
    theirs.close()
    try:
        report: dict[str, Any] = json.loads(ours.recv()) if ours.poll(SECONDS) else {}
    except EOFError:
        report = {}
    if process.is_alive():
        process.terminate()
    process.join()
    return report or {"causes": [], "findings": []}


def _run(script: Path, command: str, answer: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    sys.argv = [str(script)]
    torch.manual_seed(0)

    def work() -> None:
        runpy.run_path(str(script), run_name="__main__")

    if command == "check":
        report = run_check(work, max_steps=STEPS).report
    else:
        report = run_guarded(lambda: run_with_callbacks(work), settings=Settings()).report
    answer.send(json.dumps(report.to_dict(), default=str))


def _on_ranks(script: Path, command: str) -> dict[str, Any]:
    """The report of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        more = ["--max-steps", "3"] if command == "check" else []
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "2", "-m", "headway", command, "--format", "json", *more),
                *("--out", folder, str(script)),
            ],
            stdout=out.open("w"),
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
        text = out.read_text()
    start = text.find("{")
    report: dict[str, Any] = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}
    return report


def has_tested_fix(report: dict[str, Any]) -> bool:
    """Whether a finding has a remedy that was tried on the failing step and cured it."""
    remedies = [item for finding in report["findings"] for item in finding["remedies"]]
    return any(item["tested"] and item["cured"] for item in remedies)


def fixed(script: Path, text: str | None = None) -> dict[str, Any]:
    """What `check --fix --unsafe` does to a copy of the script, or to this version of it."""
    text = script.read_text() if text is None else text
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    steps = "3" if TOGETHER in script.name else str(STEPS)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / script.name
        copy.write_text(text)
        done = subprocess.run(
            [
                *(sys.executable, *(ranks if TOGETHER in script.name else [])),
                *("-m", "headway", "check", "--fix", "--unsafe", "--max-steps", steps, str(copy)),
            ],
            capture_output=True,
            text=True,
            timeout=4 * SECONDS,
            check=False,
            cwd=folder,
        )
        edited = copy.read_text() != text
        left = named_lines(examine(copy, "check")) if edited else []
    codes = sorted({code for code, _, _ in left} & BAD_NUMBERS)
    said = done.stdout.strip().splitlines()[-3:]
    shown = sorted(code for code in BAD_NUMBERS if f" {code} " in done.stdout)
    return {"edited": edited, "left": codes, "said": said, "shown": shown}


def healthy_versions() -> dict[str, str]:
    """The healthy version of each script that has one, by its name."""
    found = {}
    for name, pairs in tomllib.loads((SCRIPTS / "healthy.toml").read_text()).items():
        text = (SCRIPTS / f"{name}.py").read_text()
        for old, new in pairs:
            assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        found[name] = text
    return found


def measure_healthy(scripts: Sequence[Path]) -> dict[str, Any]:
    versions = healthy_versions()
    chosen = [script for script in scripts if script.stem in versions]
    found = {script.stem: fixed(script, versions[script.stem]) for script in chosen}
    for name, item in found.items():
        if item["edited"] or item["shown"]:
            print(f"  healthy {name}: {item}")
    return {
        "unchanged": sum(not item["edited"] for item in found.values()),
        "without an alarm": sum(not item["shown"] for item in found.values()),
        "of": len(chosen),
    }


def measure_fixes(scripts: Sequence[Path]) -> dict[str, Any]:
    found = {script.stem: fixed(script) for script in scripts}
    edited = {name: item for name, item in found.items() if item["edited"]}
    for name, item in found.items():
        if not item["edited"] or item["left"]:
            print(f"  fix {name}: {item}")
    return {
        "right": sum(not item["left"] for item in edited.values()),
        "edited": len(edited),
        "of": len(scripts),
        "not edited": sorted(set(found) - set(edited)),
        "left": {name: item["left"] for name, item in edited.items() if item["left"]},
    }


def measure(scripts: Sequence[Path], command: str) -> dict[str, Any]:
    wrong = {}
    without = []
    for script in scripts:
        report = examine(script, command)
        if not has_tested_fix(report):
            without.append(script.stem)
        if not is_right(script, report):
            said = named_lines(report)[:3]
            wrong[script.stem] = [f"{code} line {line}" for code, _, line in said]
            print(f"  {command} {script.stem}: expected {marked_line(script)}, said {said}")
    return {
        "right": len(scripts) - len(wrong),
        "of": len(scripts),
        "wrong": wrong,
        "with a tested fix": len(scripts) - len(without),
        "without": without,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a script's name")
    parser.add_argument(
        "--set", default="", choices=["", "o", "q", "r"], help="how the names begin"
    )
    parser.add_argument("--command", choices=["check", "run", "fix", "healthy"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.getLogger("headway").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    registry.all_checks(), all_observers()
    scripts = sorted(item for item in SCRIPTS.glob(f"{args.set}*.py") if args.only in item.name)
    found: dict[str, Any] = {}
    for command in [args.command] if args.command else ["check", "run", "fix"]:
        if command == "healthy":
            found[command] = result = measure_healthy(scripts)
            print(f"healthy: {result}")
            continue
        if command == "fix":
            found[command] = result = measure_fixes(scripts)
            counts = f"{result['edited']} of {result['of']} edited, cured {result['right']}"
            print(f"check --fix: {counts}")
            continue
        found[command] = result = measure(scripts, command)
        share = result["right"] / max(1, result["of"])
        print(f"{command}: the line is right in {result['right']} of {result['of']} ({share:.0%})")
        print(f"{command}: {result['with a tested fix']} have a fix that was tried on the step")
    if args.json:
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "headway": headway.__version__,
            "machine": f"{platform.machine()}, CPU only, one thread",
        }
        args.json.write_text(json.dumps({**about, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
