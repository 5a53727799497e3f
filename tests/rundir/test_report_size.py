"""The benchmark of long runs runs, and both planted steps are seen; here with few steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "report_size.py"


@pytest.mark.slow
def test_report_size(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps=60000", "--tensors=8", f"--json={found}"],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert found.is_file(), done.stderr
    told = json.loads(found.read_text())
    # How quick it is says nothing on a machine that does other work as well.
    for name in ("report_below_10_MB", "nan_and_spike_seen", "nan_and_spike_found"):
        assert told["kept"][name], name
    assert told["report"]["peak_megabytes"] < 300
    assert "of 60000 steps were checked in detail" in told["report"]["notes"][0]
