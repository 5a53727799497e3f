"""Damaged lines of a run directory: reported, unless a killed process explains them."""

from __future__ import annotations

from pathlib import Path

import pytest

import headway
from headway.core.records import EventRecord, Header, StepRecord
from headway.core.signals import Signal
from headway.report import Report
from headway.rundir.run_reader import RunDir
from headway.rundir.writer import RunDirWriter


def write_run(folder: Path, *, steps: int = 30) -> RunDirWriter:
    writer = RunDirWriter(folder, notify=pytest.fail)
    segment = writer.segment
    writer.write(Header("headway", {"loss": Signal()}, segment=segment))
    for step in range(steps):
        writer.write(StepRecord(segment, step + 1, step, {"loss": 2.0 - step / 100}))
    writer.flush()
    return writer


def damage_of(folder: Path) -> EventRecord | None:
    run = RunDir(folder)
    *_, last = run.records()
    return run.damage(last)


def found(folder: Path) -> list[str]:
    report: Report = headway.diagnose(folder)
    return [finding.message for finding in report.findings if finding.code == "HD004"]


def test_two_writers_are_found(tmp_path: Path) -> None:
    # Two guards of one process share its lock; so do processes on a file system without locks.
    first, second = (write_run(tmp_path, steps=5) for _ in range(2))
    for step in range(20):
        for writer in (first, second):
            writer.write(StepRecord(0, 100 + step, step, {"loss": 1.0}), now=True)
            writer.write(StepRecord(0, 6 + step, step, {"loss": 1.0}), now=True)
    (message,) = found(tmp_path)
    assert "out of order" in message


def test_a_damaged_line_is_found(tmp_path: Path) -> None:
    write_run(tmp_path)
    file = tmp_path / "steps.rank0.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[10] = lines[10][:20] + b"\0\0\0\0" + lines[10][24:]
    file.write_bytes(b"".join(lines))
    (message,) = found(tmp_path)
    assert message.startswith("1 damaged of 31 lines")


@pytest.mark.parametrize("resumed", [False, True])
def test_the_last_line_of_a_killed_process_is_no_damage(tmp_path: Path, resumed: bool) -> None:
    write_run(tmp_path)
    file = tmp_path / "steps.rank0.jsonl"
    file.write_bytes(file.read_bytes()[:-15])
    if resumed:
        write_run(tmp_path)
    assert found(tmp_path) == []
    report = headway.diagnose(tmp_path)
    assert any("1 of" in note and "damaged" in note for note in report.notes)
    event = damage_of(tmp_path)
    assert event is not None
    assert event.data["cut"] == 1


def test_a_whole_record_has_no_such_event(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_run(tmp_path)
    assert damage_of(tmp_path) is None
