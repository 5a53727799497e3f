"""Runs an example: prints section titles, runs commands, shows their output, verifies results.

An example is a script. It runs the commands that a reader would type, shows their output, and exits
with code 1 at the first result that does not match.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

SHOWN = 40
"""Maximum number of output lines that are shown; the middle of a longer output is left out."""


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    text: str
    """Standard output."""
    errors: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.text)

    @property
    def flat(self) -> str:
        """Standard output as one line, so that a sentence is found wherever it was wrapped."""
        return " ".join(self.text.split())

    def names(self, file: str, line: int) -> bool:
        """Whether a finding names this line, with or without its column."""
        return re.search(rf"{re.escape(file)}:{line}(?!\d)", self.text) is not None

    @property
    def cause(self) -> str:
        """The code of the most likely cause in the summary."""
        found = re.search(r"most likely cause: (HD\d{3})", self.flat)
        return found[1] if found else ""

    @property
    def codes(self) -> list[str]:
        """The codes of the checks that found something, in the order of the output."""
        return list(dict.fromkeys(re.findall(r"\bHD\d{3}\b", self.text)))


def section(title: str) -> None:
    """Print the title of the next section."""
    print(f"\n── {title} {'─' * max(0, 96 - len(title))}\n", flush=True)


def headway(
    *words: object,
    code: int = 0,
    within: Path | None = None,
    quiet: bool = False,
    until: str = "",
    errors: bool = False,
) -> Result:
    """Run `headway WORDS…`; it must end with that exit code.

    `until`: show the output up to the first line that begins with this text. `errors`: show
    standard error as well, where a check prints one line per step.
    """
    given = ["headway", *map(str, words)]
    return _run(given, ["-m", "headway"], code, within, quiet, until, errors)


def python(
    *words: object, code: int = 0, within: Path | None = None, quiet: bool = False
) -> Result:
    """Run `python WORDS…`."""
    return _run(["python", *map(str, words)], [], code, within, quiet)


def verify(what: str, true: object) -> None:
    """Print a claim that must be true; stop the example if it is not."""
    if not true:
        stop(f"not true: {what}")
    print(f"  ✓ {what}", flush=True)


def line_of(file: Path, text: str) -> int:
    """The number of the line that contains this text; it must be the only one."""
    found = [at for at, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    if len(found) != 1:
        stop(f"{len(found)} lines of {file.name} contain {text!r}")
    return found[0]


def recorded(run: Path, signal: str) -> list[float]:
    """Every value of a signal in a run directory, in order; see docs/signals.md for the names."""
    values = (
        json.loads(line)["v"] for line in (run / "steps.rank0.jsonl").read_text().splitlines()
    )
    return [float(item[signal]) for item in values if signal in item]


def stop(why: str) -> NoReturn:
    """End the example with exit code 1."""
    print(f"  ✗ {why}", flush=True)
    sys.exit(1)


def _run(
    shown: list[str],
    prefix: list[str],
    code: int,
    within: Path | None,
    quiet: bool,
    until: str = "",
    errors: bool = False,
) -> Result:
    print("$ " + " ".join(shown), flush=True)
    # Plain output of one width, whatever the terminal.
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *prefix, *shown[1:]],
        cwd=within, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if errors:
        _show(done.stderr)
    if not quiet or done.returncode != code:
        _show(_before(until, done.stdout) if done.stdout.strip() else done.stderr)
    print(f"  (exit {done.returncode}, {time.perf_counter() - began:.0f} s)\n", flush=True)
    if done.returncode != code:
        _show(done.stderr)
        stop(f"exit code {done.returncode}, expected {code}: {' '.join(shown)}")
    return Result(done.returncode, done.stdout, done.stderr)


def _before(end: str, text: str) -> str:
    lines = text.splitlines()
    ends = [at for at, line in enumerate(lines) if end and line.startswith(end)]
    return "\n".join([*lines[: ends[0]], "…"]) if ends else text


def _show(text: str) -> None:
    lines = text.rstrip().splitlines()
    if len(lines) > SHOWN:
        head, tail = SHOWN * 2 // 3, SHOWN // 3
        lines = [*lines[:head], f"… {len(lines) - head - tail} lines …", *lines[-tail:]]
    for line in lines:
        print(f"  {line}".rstrip(), flush=True)
