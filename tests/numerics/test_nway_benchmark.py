"""The benchmark of the N-way loss runs, small, and writes what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "nway.py"


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    told = tmp_path / "nway.json"
    options = ["--device", "cpu", "--seconds", "0.01", "--batches", "12", "64", "--json", str(told)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(told.read_text())["rows"]
    assert [row["batch"] for row in rows if row["form"] == "lines norm"] == [12, 64]
    assert "of the products (claim: at most 2)" in done.stdout
