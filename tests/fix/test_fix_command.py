"""`check --fix`, `check --diff` and `fix` from the shell, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm_python

LENGTHS = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 8)
x[21] = 0.0
model = nn.Linear(8, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(3):
    for (batch,) in DataLoader(TensorDataset(x), batch_size=16):
        lengths = torch.sqrt(model(batch).square().sum(dim=1))  # of each sample
        loss = (lengths - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
HEALTHY = LENGTHS.replace("x[21] = 0.0\n", "")


def headway(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, "-m", "headway", *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=400,
    )


@pytest.mark.slow
def test_check_fix_writes_what_a_fresh_run_confirms(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LENGTHS)
    found = headway("check", "--fix", "--max-steps", "6", "train.py", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "1 fix written and confirmed" in found.stdout
    fixed = script.read_text()
    changed = [
        (old, new)
        for old, new in zip(LENGTHS.splitlines(), fixed.splitlines(), strict=True)
        if old != new
    ]
    assert len(changed) == 1
    assert changed[0][1].endswith("  # of each sample")
    again = headway("check", "--format", "json", "--max-steps", "6", "train.py", cwd=tmp_path)
    assert json.loads(again.stdout)["findings"] == []
    assert sorted(item.name for item in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.slow
def test_a_report_is_fixed_later_and_refused_after_a_change(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LENGTHS)
    report = headway("check", "--format", "json", "--max-steps", "6", "train.py", cwd=tmp_path)
    (tmp_path / "report.json").write_text(report.stdout)
    found = headway("fix", "--diff", "--format", "json", "report.json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["verdict"] == "fixed"
    assert result["written"] is False
    assert script.read_text() == LENGTHS
    script.write_text(LENGTHS + "\n")
    refused = headway("fix", "report.json", cwd=tmp_path)
    assert refused.returncode == 2
    assert "has changed since the report was written" in refused.stderr
    assert script.read_text() == LENGTHS + "\n"


GUARDED = LENGTHS.replace(
    "from torch import nn\n", "from torch import nn\n\nimport headway\n"
).replace(
    "for epoch in range(3):\n    for (batch,) in DataLoader(TensorDataset(x), batch_size=16):",
    'guard = headway.Guard(model, optimizer, run_dir="kept")\n'
    "for epoch in range(1):\n"
    "    for (batch,) in guard(DataLoader(TensorDataset(x), batch_size=16)):",
)


@pytest.mark.slow
def test_an_incident_is_fixed_and_its_replay_confirms_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(GUARDED)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, timeout=200)
    (incident,) = (tmp_path / "kept/incidents").iterdir()
    found = headway("fix", str(incident), cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 fix written and confirmed" in found.stdout
    assert script.read_text() != GUARDED
    assert headway("replay", str(incident), cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_healthy_script_stays_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEALTHY)
    found = headway("check", "--fix", "--format", "json", "train.py", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["fixes"] == []
    assert script.read_text() == HEALTHY


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["check", "--unsafe", "train.py"], "--unsafe needs --fix or --diff"),
        (["fix", "gone.json"], "cannot read gone.json"),
        (["fix", "train.py"], "is neither an incident folder nor the output of"),
    ],
)
def test_bad_input_is_a_usage_error(tmp_path: Path, words: list[str], why: str) -> None:
    from click.testing import CliRunner

    from headway.cli.main import cli

    (tmp_path / "train.py").write_text("x = 1\n")
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        result = CliRunner().invoke(cli, words)
    finally:
        os.chdir(before)
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
