"""Traps, archives, folders and ordinary checkpoints whose author had not read the readers.

`benchmarks/hostile.py` runs the same set with one watched process for each case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors
from support import blind_folders, blind_ordinary, blind_streams, blind_traps

from headway.checkpoints.inert_pickle import load
from headway.checkpoints.pickle_verdict import judge_pickle
from headway.core.findings import Severity
from headway.errors import UnreadableInput
from headway.postmortem.scan import scan
from headway.report import Report

SLOW = re.compile("00 |bomb|members that overlap")
FRAMEWORKS = re.compile("Lightning|accelerate|transformers|adapter|TorchScript|exported")
NOT_READ = {"an exported program", "arrays of joblib", "joblib"}
"""Ordinary files that are no checkpoints; the answer says so."""


def cases(names: Iterable[str], pattern: re.Pattern[str]) -> list[Any]:
    return [
        pytest.param(name, marks=[pytest.mark.nightly] if pattern.search(name) else [])
        for name in names
    ]


def report_on(path: Path) -> Report | None:
    """None if it is refused."""
    try:
        return scan(path)
    except UnreadableInput:
        return None


def test_no_trap_is_called_clean() -> None:
    missed = []
    for name, data in blind_traps.pickles():
        loaded = load(data)
        if not any(judge_pickle(loaded)) and loaded.damage is None:
            missed.append(name)
    assert missed == []


def is_refused_by_its_library(path: Path) -> bool:
    try:
        with safetensors.safe_open(path, "numpy"):
            return False
    except (safetensors.SafetensorError, OSError):
        return True


@pytest.mark.parametrize("name", cases(sorted(set(blind_streams.ARCHIVES) - NOT_READ), SLOW))
def test_an_archive(name: str, tmp_path: Path) -> None:
    file, expected, content = blind_streams.ARCHIVES[name]
    path = tmp_path / file
    path.write_bytes(content())
    report = report_on(path)
    verdicts = [item["verdict"] for item in report.sources] if report else ["refused"]
    if expected == "library":
        accepted = not is_refused_by_its_library(path)
        assert (verdicts[0] in ("clean", "empty")) == accepted
    else:
        assert ("clean" in verdicts) == (expected == "clean")
        assert report is None or (report.findings != []) == (expected == "spoken")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", cases({**blind_folders.FOLDERS, **blind_folders.SPECIAL}, re.compile("00 "))
)
def test_a_folder(name: str, tmp_path: Path) -> None:
    expected, make = {**blind_folders.FOLDERS, **blind_folders.SPECIAL}[name]
    folder = tmp_path / "case"
    folder.mkdir()
    make(folder)
    report = report_on(folder)
    if expected == "clean":
        assert report is not None
        assert {item["verdict"] for item in report.sources} == {"clean"}
    else:
        assert report is None or report.findings or any("not followed" in n for n in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", cases([n for n in blind_ordinary.ORDINARY if n not in NOT_READ], FRAMEWORKS)
)
def test_an_ordinary_checkpoint(name: str, tmp_path: Path) -> None:
    blind_ordinary.write(tmp_path, name)
    errors = [item for item in scan(tmp_path).findings if item.severity is Severity.ERROR]
    assert errors == []
