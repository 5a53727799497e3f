"""The golden output is as it was. `freeze.py` says what is in it and how to write it again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def compare(*sections: str) -> None:
    """Run the comparison in a process of its own: it forks, and pytest has threads."""
    pytest.importorskip("torch")
    made_with = json.loads((HERE / "made_with.json").read_text())
    only = [word for name in sections for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, str(HERE / "freeze.py"), "compare", "--same-machine", *only],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 5:
        pytest.skip(f"the goldens were made with {made_with}")
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


@pytest.mark.slow
def test_what_is_read_from_files() -> None:
    compare("diagnose", "scan")


def test_run_directories_and_final_states() -> None:
    compare("runs", "states")


@pytest.mark.slow
@pytest.mark.parametrize("section", ["explain", "check"])
def test_trainings_that_go_wrong(section: str) -> None:
    compare(section)


def test_healthy_trainings_end_alike_with_and_without_a_guard() -> None:
    records = json.loads((HERE / "states.structure.json").read_text())
    healthy = {name: item for name, item in records.items() if item["healthy"]}
    assert len(healthy) >= 10
    assert [name for name, item in healthy.items() if not item["identical"]] == []


def test_the_goldens_stay_small() -> None:
    assert sum(path.stat().st_size for path in HERE.glob("*.json")) < 1_600_000
