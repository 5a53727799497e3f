"""How many faults `headway check --fix` removes, and whether it leaves healthy scripts alone.

    python benchmarks/fixes.py                       # all scripts of corpus/fixes
    python benchmarks/fixes.py --kind numbers --json found.json
    python benchmarks/fixes.py --only softmax

Each script is checked, its edits are tried one by one, and those that a run of the edited script
confirms are written, as `headway check --fix --unsafe` does. Counts how many scripts get such an
edit, and in how many of these the finding is gone when the written file is checked once more. The
healthy version of each script must get no edit. Every run is a fork of this process, so that torch
is imported once; `tests/fix/test_fix_command.py` runs the command itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from support.corpus_runs import CORPUS, run_forked

import headway.preflight.runner  # noqa: F401  imported here, once, and not in every fork
from headway.fix.fix_session import FixSession
from headway.fix.fresh_run import RunResult, read_losses, write_overlay
from headway.fix.project import Project, WrittenFiles

SCRIPTS = CORPUS / "fixes"


class ForkedCheck:
    """`headway check` over a script, in a fork."""

    def __init__(self, script: Path, steps: int) -> None:
        self._script = script
        self._steps = steps

    def __call__(self, files: Mapping[str, bytes]) -> RunResult:
        overlay = self._script.with_suffix(".overlay")
        write_overlay(str(overlay), files)
        options = ["--max-steps", str(self._steps), "--format", "json", "--overlay", str(overlay)]
        printed = run_forked(["check", *options, str(self._script)])
        try:
            report = json.loads(printed[printed.index("{") :])
        except ValueError:
            return RunResult(None, error=printed[-200:])
        crash = [item["message"] for item in report["findings"] if item["code"] == "HD911"]
        return RunResult(report, read_losses(report["losses"]), crash[0] if crash else "")


def measure(entry: Mapping[str, Any], *, healthy: bool) -> dict[str, Any]:
    """The outcome of one script."""
    source = (SCRIPTS / entry["file"]).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder).resolve() / entry["file"]
        script.write_text(source, encoding="utf-8")
        check = ForkedCheck(script, entry["steps"])
        first, session = _improve(script, check)
        kept = [item for item in session.outcomes if item.kept]
        found: dict[str, Any] = {
            "file": entry["file"],
            "kind": entry["kind"],
            "findings": sorted({item["code"] for item in first.findings}),
            "fixed": [item.finding["code"] for item in kept],
            "edits": [item.remedy["text"] for item in kept],
            "why_not": [item.why for item in session.outcomes if not item.kept][:2],
        }
        if kept:
            WrittenFiles(session.contents).write()
            later = check({})
            codes = {item["code"] for item in later.findings}
            found["gone"] = later.report is not None and not codes & set(found["fixed"])
        if healthy:
            script.write_text(_healthy(source, entry), encoding="utf-8")
            _, session = _improve(script, check)
            found["healthy_unchanged"] = not session.contents
    return found


def _improve(script: Path, check: ForkedCheck) -> tuple[RunResult, FixSession]:
    first = check({})
    session = FixSession(Project(script), check, unsafe=True)
    if first.report is not None:
        session.improve(first)
    return first, session


def _healthy(source: str, entry: Mapping[str, Any]) -> str:
    for old, new in entry["healthy"]:
        source = source.replace(old, new)
    return source


def summary(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Counts as [right, of]."""

    def count(name: str, kind: str = "") -> list[int]:
        asked = [row for row in rows if name in row and kind in row["kind"]]
        return [sum(bool(row[name]) for row in asked), len(asked)]

    return {
        "bad numbers with a confirmed fix": count("fixed", "numbers"),
        "mechanical faults with a confirmed fix": count("fixed", "mechanical"),
        "gone when checked again": count("gone"),
        "healthy scripts unchanged": count("healthy_unchanged"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["numbers", "mechanical"])
    parser.add_argument("--only", default="", help="part of a file's name")
    parser.add_argument("--no-healthy", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    entries = tomllib.loads((SCRIPTS / "manifest.toml").read_text(encoding="utf-8"))["script"]
    chosen = [
        entry
        for entry in entries
        if args.kind in (None, entry["kind"]) and args.only in entry["file"]
    ]
    rows: list[dict[str, Any]] = []
    # In a thread of its own: a fork inherits the stack, where a loop would look like the user's.
    with ThreadPoolExecutor(1) as pool:
        for row in pool.map(lambda entry: measure(entry, healthy=not args.no_healthy), chosen):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if args.json:  # written as it grows: the whole set takes long
                args.json.write_text(json.dumps(_record(rows), indent=2) + "\n", encoding="utf-8")
    for name, (right, of) in summary(rows).items():
        print(f"{name}: {right} of {of}")


def _record(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        **summary(rows),
        "scripts": rows,
    }


if __name__ == "__main__":
    main()
