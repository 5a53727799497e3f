"""Every trap is reported, none is executed, and ordinary checkpoints are quiet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import pickle_traps as traps

from headway.checkpoints.inert_pickle import load
from headway.checkpoints.pickle_verdict import judge_pickle
from headway.postmortem.scan import scan

PICKLES = dict(traps.pickles())
MIN_TRAPS, MIN_MECHANISMS = 300, 40


def test_there_are_enough() -> None:
    assert len(PICKLES) >= MIN_TRAPS
    assert len(traps.WAYS) + len(traps.SPECIAL) >= MIN_MECHANISMS


def test_no_trap_is_called_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    missed = []
    for name, data in PICKLES.items():
        loaded = load(data)
        if not any(judge_pickle(loaded)) and loaded.damage is None:
            missed.append(name)
    assert missed == []
    assert os.listdir(tmp_path) == []


def test_no_file_with_a_trap_is_called_clean(tmp_path: Path) -> None:
    for name, path in traps.files(tmp_path):
        report = scan(path)
        assert [f for f in report.findings if f.code == "HD703"], name
        evil = [item for item in report.sources if item["verdict"] in ("unsafe", "unreadable")]
        assert evil, name


@pytest.mark.nightly
def test_most_of_them_do_run_code(tmp_path: Path) -> None:
    """The set is worth something only if loading its files does something."""
    program = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    ran = 0
    for number, data in enumerate(PICKLES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", program],
            input=data,
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=60,
        )
        ran += any(folder.iterdir())
    assert ran > 100
