"""The benchmark of forecasts: its rule for "diverged", its table of settings, and a short run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.nightly
def test_every_tenth_training(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "forecast.py"), "--quick", f"--json={found}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(found.read_text())
    published = sorted((BENCHMARKS / "results").glob("*-forecast.json"))[-1]
    before = {run["name"]: run for run in json.loads(published.read_text())["runs"]}
    assert len(record["runs"]) == 17
    differ = [
        run["name"]
        for run in record["runs"]
        if (run["onset"] is None) != (before[run["name"]]["onset"] is None)
    ]
    # Another processor may round differently, and some runs are close to the limit.
    assert len(differ) <= 1, differ
    for row in record["rules"]:
        assert row["rule"] in done.stdout
        if row["threshold"] is not None and "as published" not in row["rule"]:
            assert row["development"]["false_alarms"] == 0, row["rule"]


def recorded(evaluations: list[float], steps: int) -> Any:
    """A run of which only the losses on fixed data matter, measured every 5 steps."""
    return SimpleNamespace(
        evaluations=[(5 * number, value) for number, value in enumerate(evaluations)],
        turn=[0.0] * steps,
    )


def test_the_rule_for_a_divergence() -> None:
    forecast = importlib.import_module("forecast")
    falls = [4.0 / (1 + number) for number in range(40)]
    assert forecast.onset_of(recorded(falls, 200), 200) is None
    spike = [*falls[:20], 50.0, 50.0, *falls[22:]]
    assert forecast.onset_of(recorded(spike, 200), 200) is None, "a spike that recovers"
    assert forecast.onset_of(recorded([*falls[:20], *[9.0] * 20], 200), 200) == 96
    assert forecast.onset_of(recorded(falls[:20], 98), 200) == 96, "the loss became NaN"


def test_a_warning_counts_only_before_the_divergence() -> None:
    forecast = importlib.import_module("forecast")
    settings = importlib.import_module("_forecast_settings").settings()
    diverges, survives = settings[0], settings[40]  # the rate of the first one rises from step 100
    runs = [forecast.Run(diverges, None, 150)] * 4 + [forecast.Run(survives, None, None)] * 2
    found = forecast.judge(runs, [150, 149, 90, None, None, 7])
    assert found == {
        "divergences": 4,
        "warned": 2,
        "warned_early": 1,
        "warned_before_cause": 1,
        "median_lead": 30.5,
        "survivors": 2,
        "false_alarms": 1,
    }
