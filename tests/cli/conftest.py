"""Run directories to look at, and ways to call the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.literate_cases import read_records

from headway.cli.main import cli
from headway.rundir.writer import RunDirWriter

MakeRun = Callable[..., Path]
Invoke = Callable[..., Result]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A run directory of records written as in the literate pages."""

    def make(*lines: str, name: str = "run") -> Path:
        writer = RunDirWriter(tmp_path / name, notify=pytest.fail)
        for record in read_records(list(lines)):
            writer.write(record)
        writer.flush()
        return tmp_path / name

    return make


@pytest.fixture
def sick(make_run: MakeRun) -> Path:
    """A run that turned NaN."""
    return make_run("loss: 2.0..1.5~0.02*50, nan*5", "grad_norm: 1.0~0.1*50, nan*5", name="sick")


@pytest.fixture
def uneasy(make_run: MakeRun) -> Path:
    """A run with a warning and no error: a spike that was held back."""
    return make_run("grad_norm: 1.0~0.1*60, 400, 1.0~0.1*10", "held: @61", name="uneasy")


@pytest.fixture
def well(make_run: MakeRun) -> Path:
    """A healthy run."""
    return make_run("loss: 2.0..1.5~0.02*80", "grad_norm: 1.0~0.1*80", name="well")


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Call the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_DEBUG", raising=False)

    def call(*args: object) -> Result:
        return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="headway")

    return call


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Call the command line as a process of its own."""

    def call(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headway", *(str(arg) for arg in args)],
            capture_output=True,
            encoding="utf-8",
            cwd=tmp_path,
            env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
            timeout=120,
        )

    return call
