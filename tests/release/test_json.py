"""Every command's real JSON fits the schema that is shipped, and a run directory has its names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import warm_python
from support.json_schema import KNOWN, keywords, misfits
from support.literate_cases import read_records

from headway import registry
from headway.cli.main import cli
from headway.rundir.writer import RunDirWriter

OWN_LOOP = """
import torch
import headway

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(12)]
loader[7][0][3, 2] = float("nan")
guard = headway.Guard(model, optimizer, run_dir="kept", snapshots=headway.Snapshots(every=4))
for x, y in guard(loader):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
guard.close()
"""
UNCHANGED = OWN_LOOP.replace("guard(loader)", "loader").replace("guard.close()\n", "")
UNCHANGED = "\n".join(line for line in UNCHANGED.splitlines() if "headway" not in line)


def told(*args: object) -> Any:
    """What a command writes, called in this process."""
    done = CliRunner().invoke(cli, [*map(str, args), "--format", "json"], prog_name="headway")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


def shell(folder: Path, *args: str) -> tuple[int, Any]:
    """The same as a process of its own: it runs somebody's script."""
    done = warm_python.run(
        [sys.executable, "-m", "headway", *args, "--format", "json"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def run_of(folder: Path, *lines: str) -> Path:
    writer = RunDirWriter(folder, notify=pytest.fail)
    for record in read_records(list(lines)):
        writer.write(record)
    writer.flush()
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a guarded loop's script, and the run it has left."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("loop")
    (folder / "own.py").write_text(OWN_LOOP)
    (folder / "train.py").write_text(UNCHANGED)
    warm_python.run(
        [sys.executable, "own.py"],
        check=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    return folder


def test_the_schema_uses_only_what_is_tested_here() -> None:
    assert keywords() <= KNOWN


def test_a_misfit_is_found() -> None:
    report = told("checks")
    del report["schema"]
    report["checks"][3]["severity"] = "fatal"
    assert misfits(report, "checks") == [
        "checks: schema is missing",
        "checks.checks[3].severity: 'fatal' is none of ['info', 'warning', 'error']",
    ]


def test_diagnose(tmp_path: Path) -> None:
    sick = run_of(tmp_path / "sick", "loss: 2.0..1.5~0.02*50, nan*5", "grad_norm: 1~0.1*50, nan*5")
    well = run_of(tmp_path / "well", "loss: 2.0..1.5~0.02*80", "grad_norm: 1.0~0.1*80")
    one = told("diagnose", sick)
    assert misfits(one, "report") == []
    assert one["verdict"] == "findings"
    assert misfits(told("diagnose", sick, well), "reports") == []


def test_scan(tmp_path: Path) -> None:
    np.savez(tmp_path / "step1.npz", w=np.array([1.0, np.nan]))
    report = told("scan", tmp_path)
    assert misfits(report, "report") == []
    assert report["causes"][0]["code"] == "HD701"


def test_checks_and_explain() -> None:
    assert misfits(told("checks"), "checks") == []
    for check in registry.all_checks():
        assert misfits(told("explain", check.code), "explain") == [], check.code


def test_env() -> None:
    assert misfits(told("env"), "env") == []


@pytest.mark.slow
def test_check_and_run(kept: Path) -> None:
    code, report = shell(kept, "check", "train.py", "--max-steps", "10")
    assert (code, report["command"]) == (1, "check")
    assert misfits(report, "report") == []
    assert "HD101" in [item["code"] for item in report["findings"]]
    code, report = shell(kept, "run", "train.py", "--out", "ran")
    assert (code, report["command"]) == (0, "run")  # as the script itself
    assert misfits(report, "report") == []
    assert report["actions"][0]["action"] == "skip"


@pytest.mark.slow
def test_replay(kept: Path) -> None:
    code, content = shell(kept, "replay", "kept/incidents/1-step7")
    assert (code, content["verdict"]) == (1, "reproduces")
    assert misfits(content, "replay") == []


def test_the_run_directory_has_its_names(kept: Path) -> None:
    names = {path.name for path in (kept / "kept").iterdir()}
    assert {"run.json", "steps.rank0.jsonl", "events.jsonl", "incidents", "snapshots"} <= names
    assert json.loads((kept / "kept/run.json").read_text())["schema"] == 1
    for name in ("steps.rank0.jsonl", "events.jsonl"):
        for line in (kept / "kept" / name).read_text().splitlines():
            json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
