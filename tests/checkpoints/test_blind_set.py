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
from support import (
    blind_folders,
    blind_ordinary,
    blind_streams,
    blind_traps,
    third_blind_files,
    third_blind_folders,
    third_blind_ordinary,
    third_blind_traps,
)

from headway.checkpoints import nested_pickles
from headway.checkpoints.inert_pickle import load
from headway.checkpoints.pickle_verdict import judge_pickle
from headway.core.findings import Severity
from headway.errors import UnreadableInput
from headway.postmortem.scan import scan
from headway.report import Report

SLOW = re.compile("00 |bomb|members that overlap|gigabyte|million|hundred|names of one|export")
FRAMEWORKS = re.compile(
    "Lightning|accelerate|transformers|Trainer|adapter|TorchScript|export|FSDP|scikit"
)

ARCHIVES = {**blind_streams.ARCHIVES, **third_blind_files.FILES}
FOLDERS = {**blind_folders.FOLDERS, **blind_folders.SPECIAL, **third_blind_folders.FOLDERS}


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


def has_errors(report: Report) -> bool:
    return any(item.severity is Severity.ERROR for item in report.findings)


def test_no_trap_is_called_clean(tmp_path: Path) -> None:
    missed = []
    for name, data in [*blind_traps.pickles(), *third_blind_traps.pickles()]:
        loaded = load(data)
        if not any(judge_pickle(loaded)) and loaded.damage is None:
            path = tmp_path / "x.pkl"  # there may be another pickle behind it
            path.write_bytes(data)
            missed += [] if nested_pickles.hidden_pickles(path) else [name]
    assert missed == []


def is_refused_by_its_library(path: Path) -> bool:
    try:
        with safetensors.safe_open(path, "numpy"):
            return False
    except (safetensors.SafetensorError, OSError):
        return True


@pytest.mark.parametrize("name", cases(sorted(ARCHIVES), SLOW))
def test_an_archive(name: str, tmp_path: Path) -> None:
    file, expected, content = ARCHIVES[name]
    path = tmp_path / file
    path.write_bytes(content())
    report = report_on(path)
    verdicts = [item["verdict"] for item in report.sources] if report else ["refused"]
    if expected == "any":
        return
    if expected.startswith("unread "):
        assert verdicts == ["refused"]
    elif expected == "ordinary":
        assert report is not None
        assert not has_errors(report)
    elif expected == "library":
        accepted = not is_refused_by_its_library(path)
        assert (verdicts[0] in ("clean", "empty")) == accepted
    else:
        assert ("clean" in verdicts) == (expected == "clean")
        assert report is None or (report.findings != []) == (expected == "spoken")


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(FOLDERS, re.compile("00 |DCP|thousand")))
def test_a_folder(name: str, tmp_path: Path) -> None:
    expected, make = FOLDERS[name]
    folder = tmp_path / "case"
    folder.mkdir()
    make(folder)
    report = report_on(folder)
    if expected == "clean":
        assert report is not None
        assert {item["verdict"] for item in report.sources} == {"clean"}
    elif expected == "ordinary":
        assert report is not None
        assert not has_errors(report)
    elif expected != "any":
        assert report is None or report.findings or any("not followed" in n for n in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", cases([*blind_ordinary.ORDINARY, *third_blind_ordinary.ORDINARY], FRAMEWORKS)
)
def test_an_ordinary_checkpoint(name: str, tmp_path: Path) -> None:
    if name in third_blind_ordinary.NEEDS:
        pytest.importorskip(third_blind_ordinary.NEEDS[name])
    third = name in third_blind_ordinary.ORDINARY
    (third_blind_ordinary if third else blind_ordinary).write(tmp_path, name)
    assert not has_errors(scan(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(third_blind_folders.PATHS))
def test_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, make = third_blind_folders.PATHS[name]
    if expected == "fetched":
        pytest.skip("a URL is opened, as documented")
    folder = tmp_path / "case"
    folder.mkdir()
    path = make(folder)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    try:
        report = scan(path)
    except UnreadableInput:
        assert expected in ("refused", "any")
    else:
        assert expected in ("clean", "any")
        assert not has_errors(report)
