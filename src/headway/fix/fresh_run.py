"""Runs `headway check` or `headway replay` again in a fresh process, with edited files.

The edits exist only in that process: it overlays the files and leaves those on disk alone.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import UsageError
from headway.fix.project import Contents

SHORTEST_TIMEOUT_SECONDS = 120.0
"""A fresh process imports torch first, which can take a minute on a slow disk."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a run under `check` or `replay`."""

    report: Mapping[str, Any] | None
    """The JSON report; None if there is none."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """The loss of each step whose loss and gradients were finite."""
    error: str = ""
    """Why there is no report, or how the script failed."""
    cured: bool | None = None
    """For a replay: whether the step is cured."""

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = () if self.report is None else self.report["findings"]
        return found

    @property
    def steps(self) -> int:
        return 0 if self.report is None else int(self.report.get("steps", 0))


@dataclass(frozen=True, slots=True)
class FreshRun:
    """A headway command that is run again, in the same folder and with the same options."""

    command: str
    """`check` or `replay`."""
    arguments: Sequence[str]
    """Options and the script, without the format."""
    script_arguments: Sequence[str] = ()
    cwd: str | None = None
    timeout_s: float = SHORTEST_TIMEOUT_SECONDS
    ranks: int = 1

    def __call__(self, files: Contents) -> RunResult:
        with tempfile.TemporaryDirectory(prefix="headway-fix-") as folder:
            path = os.path.join(folder, "files.json")
            write_overlay(path, files)
            given = ["--", *self.script_arguments] if self.script_arguments else []
            arguments = [self.command, "--format", "json", "--overlay", path]
            return self._run([*self._launcher(), *arguments, *self.arguments, *given])

    def _launcher(self) -> list[str]:
        if self.ranks == 1:
            return [sys.executable, "-m", "headway"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, "--nproc-per-node", str(self.ranks), "-m", "headway"]

    def _run(self, words: list[str]) -> RunResult:
        try:
            done = subprocess.run(
                words,
                cwd=self.cwd,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return RunResult(None, error=f"the run took longer than {self.timeout_s:.0f} seconds")
        try:
            report = json.loads(done.stdout)
        except ValueError:
            return RunResult(None, error=_last_line(done.stderr) or f"exit code {done.returncode}")
        if self.command == "replay":
            cured = done.returncode == 0
            nothing = {"findings": [], "causes": [], "steps": 0} if cured else None
            return RunResult(nothing, cured=cured, error=str(report.get("said", "")))
        error = _last_line(done.stderr) if done.returncode == 3 else ""
        return RunResult(report, read_losses(report.get("losses", ())), error)


def write_overlay(path: str, files: Contents) -> None:
    coded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    Path(path).write_text(json.dumps(coded), encoding="utf-8")


@contextmanager
def overlay_from(path: Path | None) -> Iterator[None]:
    """Within: this process sees the files that `write_overlay` wrote. None: no change."""
    if path is None:
        yield
        return
    from headway.torch_adapters.rng import seed_all
    from headway.torch_adapters.source_overlay import overlay_files

    try:
        coded = json.loads(path.read_text(encoding="utf-8"))
        files = {str(name): base64.b64decode(content) for name, content in coded.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"--overlay {path} cannot be read: {error}") from error
    seed_all(0)  # a script without a seed must give the same numbers in every run
    with overlay_files(files):
        yield


def read_losses(rows: Any) -> dict[int, float]:
    """Losses by step, as the JSON has them: [[step, loss], …]."""
    return {int(step): float(loss) for step, loss in rows if math.isfinite(float(loss))}


_OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def _environment() -> dict[str, str]:
    """The environment, without what torchrun set for the ranks of this run."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))
        and name not in (*_OF_A_LAUNCHER, "MASTER_PORT")
    }
    return {**kept, "PYTHONHASHSEED": kept.get("PYTHONHASHSEED", "0")}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
