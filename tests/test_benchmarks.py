"""The benchmarks run, and what they say of headway is not embarrassing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.slow
def test_recovery(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "recovery.py"),
            "--quick",
            "--seeds=1",
            f"--json={found}",
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(found.read_text())
    assert {"date", "machine", "torch", "python", "headway", "scale"} <= record.keys()
    results = record["results"]
    scenarios = {"clean", "spikes", "poison", "bad stretch", "bad memory", "all"}
    assert results.keys() == scenarios
    for scenario, rows in results.items():
        assert scenario in done.stdout
        for rule, row in rows.items():
            assert rule in done.stdout
            if rule.startswith("headway"):
                assert row["dead"] == row["halted"] == 0, f"{rule}: {scenario}"
                assert all(math.isfinite(loss) for loss in row["losses"])
    assert results["clean"]["headway"]["losses"] == results["clean"]["nothing"]["losses"]
    assert results["clean"]["headway"]["held"] == 0
    assert results["poison"]["nothing"]["dead"] == 1, "the poison is poison"
    assert results["poison"]["headway"]["held"] == record["scale"]["poisoned"]
