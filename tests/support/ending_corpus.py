"""Runs the scripts of `corpus/endings` under `headway run` and compares with `expected.toml`.

    PYTHONPATH=src:tests python -m support.ending_corpus [--json FILE]

prints one line per script that is not as expected, and the totals.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import warm_python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parents[2] / "corpus" / "endings"
ENDINGS = {"HD514", "HD607", "HD608", "HD708", "HD808", "HD809"} | {
    f"HD{number}" for number in range(911, 916)
}
MARK = "# HERE"


@dataclass(frozen=True)
class EndingScript:
    """A script and what must be said about it."""

    script: str
    exit: int
    code: str | None = None
    verdict: str | None = None
    line: bool = False
    sample: int | None = None
    words: str | None = None

    @property
    def path(self) -> Path:
        return FOLDER / self.script

    @property
    def marked_line(self) -> int:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return next(number for number, text in enumerate(lines, 1) if text.endswith(MARK))


def ending_scripts() -> list[EndingScript]:
    """All scripts with their expectations."""
    data = tomllib.loads((FOLDER / "expected.toml").read_text(encoding="utf-8"))
    return [EndingScript(**entry) for entry in data["script"]]


def blind_endings() -> list[dict[str, Any]]:
    """The scripts of the blind sets, with the expectations that were wrong corrected."""
    return [
        {**entry, **entry.get("corrected", {}), "set": name}
        for name in ("blind_endings", *(f"blind_endings_{number}" for number in range(2, 6)))
        for entry in json.loads((FOLDER.parent / name / "cases.json").read_text(encoding="utf-8"))
    ]


def run_script(entry: EndingScript, *, timeout: float = 300) -> dict[str, list[str]]:
    """What is wrong with the answer: `code` and `line`, each a list of problems."""
    with tempfile.TemporaryDirectory() as folder:
        done = warm_python.run(
            [
                *(sys.executable, "-m", "headway", "run", "--format", "json"),
                *("--out", f"{folder}/run", str(entry.path)),
            ],
            cwd=folder,
            timeout=timeout,
        )
    problems: dict[str, list[str]] = {"code": [], "line": []}
    if done.returncode != entry.exit:
        problems["code"].append(f"exit {done.returncode}, not {entry.exit}")
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        problems["code"].append(f"no report: {done.stderr[-300:]}")
        return problems
    found = [item for item in report["findings"] if item["code"] in ENDINGS]
    if entry.code is None:
        if found or report["verdict"] in ("failed", "interrupted"):
            codes = [item["code"] for item in found]
            problems["code"].append(f"a living script: {report['verdict']} {codes}")
        return problems
    if report["verdict"] != entry.verdict:
        problems["code"].append(f"verdict {report['verdict']}, not {entry.verdict}")
    if [item["code"] for item in found] != [entry.code]:
        codes = [item["code"] for item in found]
        problems["code"].append(f"{codes}, not {entry.code}")
        return problems
    (finding,) = found
    if entry.words and entry.words not in finding["message"]:
        problems["code"].append(f"message without {entry.words!r}: {finding['message']}")
    where = finding["where"]
    if entry.sample is not None and where["sample"] != entry.sample:
        problems["code"].append(f"sample {where['sample']}, not {entry.sample}")
    if entry.line and (where["file"], where["line"]) != (str(entry.path), entry.marked_line):
        problems["line"].append(f"{where['file']}:{where['line']}, not line {entry.marked_line}")
    return problems


def main() -> None:
    """Run all and print what is not as expected."""
    wrong = {"code": 0, "line": 0, "living": 0}
    entries = ending_scripts()
    for entry in entries:
        try:
            problems = run_script(entry)
        except subprocess.TimeoutExpired:
            problems = {"code": ["timed out"], "line": []}
        for kind, texts in problems.items():
            if texts:
                wrong["living" if entry.code is None else kind] += 1
                print(f"{entry.script}: {'; '.join(texts)}", flush=True)
    dead = [entry for entry in entries if entry.code is not None]
    lines = sum(entry.line for entry in dead)
    print(f"{len(dead) - wrong['code']} of {len(dead)} endings called by the right code")
    print(f"{lines - wrong['line']} of {lines} lines exact")
    print(f"{wrong['living']} alarms on {len(entries) - len(dead)} living scripts")


if __name__ == "__main__":
    main()
