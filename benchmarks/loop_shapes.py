"""How often the line of a bad number is named, for loops of many shapes.

    python benchmarks/loop_shapes.py [--only recursion] [--command check|run|fix] [--json FILE]
    python benchmarks/loop_shapes.py --set q     # the second set: its names begin with q
    python benchmarks/loop_shapes.py --set r     # the third set
    python benchmarks/loop_shapes.py --set s     # the fourth set
    python benchmarks/loop_shapes.py --set t     # the fifth set

The scripts of corpus/origins: loops of many shapes, from a list comprehension to Lightning and
two ranks, each with one bad number. The line where it originates carries the mark `# <- origin`,
written before the script ran for the first time; a script may have a folder of its own name with
more modules, and `Fix: none` in its docstring says that no edit of the source is a fix. Each runs
unmodified, in a process of its own, once under `headway check` and once under `headway run`. A
line is right if the first cause names it. Then `headway check --fix --unsafe` edits a copy:
counted is how many scripts get an edit that a fresh run confirmed, and in how many of these no
finding of a bad number is left. `--command healthy` does the same to the healthy version of each
script (corpus/origins/healthy.toml), which must stay as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import torch

import headway

SCRIPTS = Path(__file__).resolve().parents[1] / "corpus" / "origins"
MARK = "# <- origin"
STEPS = 6
RANK_STEPS = 3
TOGETHER = "_ranks_"
"""In the name of a script for two ranks."""
SECONDS = 240
BAD_NUMBERS = {"HD101", "HD201", "HD301", "HD302", "HD303", "HD313", "HD501"}


def marked_line(script: Path) -> tuple[str, int]:
    """(file name, line) of the mark, in the script or in a module of its folder."""
    for file in [script, *sorted(script.with_suffix("").glob("*.py"))]:
        for number, text in enumerate(file.read_text().splitlines(), 1):
            if MARK in text:
                return file.name, number
    raise LookupError(f"no line of {script} is marked")


def is_fixable(script: Path) -> bool:
    return "\nFix: none" not in script.read_text()


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
    return (Path(str(file)).name, line) == marked_line(script)


def examine(script: Path, command: str) -> dict[str, Any]:
    """The report of the command on the script, as plain data."""
    ranks = TOGETHER in script.name
    steps = ["--max-steps", str(RANK_STEPS if ranks else STEPS)] if command == "check" else []
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *_headway(script, command),
                *("--format", "json", *steps, "--out", folder, str(script)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    start = done.stdout.find("{")
    if start < 0:
        return {"causes": [], "findings": []}
    report: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[start:])[0]
    return report


def _headway(script: Path, command: str) -> list[str]:
    """The command, on two ranks where the script needs them."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [sys.executable, *(ranks if TOGETHER in script.name else ()), "-m", "headway", command]


def has_tested_fix(report: dict[str, Any]) -> bool:
    """Whether a finding has a remedy that was tried on the failing step and cured it."""
    remedies = [item for finding in report["findings"] for item in finding["remedies"]]
    return any(item["tested"] and item["cured"] for item in remedies)


def _sources(folder: Path) -> dict[Path, str]:
    return {file: file.read_text() for file in folder.rglob("*.py")}


def fixed(script: Path, text: str | None = None) -> dict[str, Any]:
    """What `check --fix --unsafe` does to a copy of the script, or to this version of it."""
    text = script.read_text() if text is None else text
    steps = str(RANK_STEPS if TOGETHER in script.name else STEPS)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / script.name
        copy.write_text(text)
        if script.with_suffix("").is_dir():
            shutil.copytree(script.with_suffix(""), copy.with_suffix(""))
        before = _sources(Path(folder))
        done = subprocess.run(
            [
                *_headway(script, "check"),
                *("--fix", "--unsafe", "--max-steps", steps, str(copy)),
            ],
            capture_output=True,
            text=True,
            timeout=4 * SECONDS,
            check=False,
            cwd=folder,
        )
        edited = _sources(Path(folder)) != before
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
        "of those that have one": sum(is_fixable(script) for script in scripts),
        "without": without,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a script's name")
    parser.add_argument(
        "--set", default="", choices=["", "o", "q", "r", "s", "t"], help="how the names begin"
    )
    parser.add_argument("--command", choices=["check", "run", "fix", "healthy"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], *([before] if before else [])])
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
