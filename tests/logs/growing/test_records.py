"""The records of a run directory, read while it grows."""

from __future__ import annotations

import json
import os
import time
from itertools import islice
from pathlib import Path

import pytest

from headway.core.codec import to_json
from headway.core.records import EventRecord, Header, Record, StepRecord
from headway.errors import UnreadableInput
from headway.rundir import run_files, run_reader
from headway.rundir.run_reader import PATIENCE, RunDir

HEADER = Header("headway", segment=0, seq=1)


def line(record: Record) -> str:
    return json.dumps(to_json(record)) + "\n"


def step(seq: int) -> StepRecord:
    return StepRecord(0, seq, seq - 1, {"loss": float(seq)})


def event(seq: int, kind: str = "note") -> EventRecord:
    return EventRecord(0, seq, seq, kind, {})


class Run:
    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self) -> None:
        (self.path / "run.json").write_text(line(HEADER))
        self.add("events.jsonl", line(HEADER))

    def add(self, name: str, text: str) -> None:
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)

    def steps(self, *seqs: int) -> None:
        self.add("steps.rank0.jsonl", "".join(line(step(seq)) for seq in seqs))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time it is, as far as the reader knows."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def read(growing: RunDir) -> list[Record]:
    return list(growing.follow())


def seqs(found: list[Record]) -> list[int]:
    return [record.seq for record in found]


def test_nothing_before_the_header_then_only_what_is_new(run: Run) -> None:
    growing = RunDir(run.path)
    assert read(growing) == []
    run.begin()
    assert read(growing) == [HEADER]
    run.steps(1, 2)
    assert read(growing) == [step(1), step(2)]
    assert read(growing) == []
    run.steps(3)
    assert read(growing) == [step(3)]


def test_half_a_line_is_left_for_the_next_time(run: Run) -> None:
    run.begin()
    growing = RunDir(run.path)
    read(growing)
    whole = line(step(1))
    run.add("steps.rank0.jsonl", whole[:10])
    assert read(growing) == []
    run.add("steps.rank0.jsonl", whole[10:])
    assert read(growing) == [step(1)]
    assert growing.torn == 0


def test_a_torn_line_is_counted_and_waited_past(run: Run, clock: list[float]) -> None:
    run.begin()
    run.steps(1)
    run.add("steps.rank0.jsonl", '{"seg": 0, "seq\n\n\x00\n')
    run.steps(3, 4)
    growing = RunDir(run.path)
    assert read(growing) == [HEADER, step(1)]
    assert growing.torn == 2
    clock[0] += PATIENCE / 2
    assert read(growing) == []
    assert growing.waiting
    clock[0] += PATIENCE / 2
    assert read(growing) == [step(3), step(4)]
    assert not growing.waiting


def test_nobody_waits_twice_for_what_was_there(
    run: Run, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reader, "PIECE", 64)
    run.begin()
    run.steps(*range(1, 100, 2))
    growing = RunDir(run.path)
    assert read(growing) == [HEADER, step(1)]
    clock[0] += PATIENCE
    assert seqs(read(growing)) == list(range(3, 100, 2))
    run.steps(103)
    assert read(growing) == []


def test_who_has_no_patience_gets_all_at_once(run: Run) -> None:
    run.begin()
    run.steps(1, 3, 5)
    assert seqs(read(RunDir(run.path, patience=0.0))) == [1, 1, 3, 5]


def test_no_gap_is_waited_for_where_both_files_have_gone_on(run: Run) -> None:
    run.begin()
    run.steps(1, 3)
    run.add("events.jsonl", line(event(4)))
    assert seqs(read(RunDir(run.path))) == [1, 1, 3, 4]


def test_a_line_out_of_order_is_damage(run: Run) -> None:
    run.begin()
    run.steps(1, 2, 1, 3)
    growing = RunDir(run.path)
    assert seqs(read(growing)) == [1, 1, 2, 3]
    assert growing.torn == 1


def test_a_line_longer_than_any_record_is_passed_over(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "LONGEST_LINE", 1 << 10)
    monkeypatch.setattr(run_reader, "PIECE", 1 << 8)
    run.begin()
    run.steps(1)
    run.add("steps.rank0.jsonl", "x" * 5000 + "\n")
    run.steps(2)
    growing = RunDir(run.path)
    assert read(growing) == [HEADER, step(1), step(2)]
    assert growing.torn == 1


def test_a_look_may_end_at_any_record(run: Run) -> None:
    run.begin()
    run.steps(*range(1, 50))
    growing = RunDir(run.path)
    found: list[Record] = []
    while some := list(islice(growing.follow(), 7)):
        found += some
    assert seqs(found) == [1, *range(1, 50)]
    assert growing.progress[0] == growing.progress[1] > 0


def test_what_is_skipped_is_not_given_out(run: Run) -> None:
    run.begin()
    run.steps(1, 2)
    growing = RunDir(run.path)
    growing.skip()
    assert growing.progress[0] == growing.progress[1] > 0
    assert read(growing) == []
    run.steps(3)
    assert read(growing) == [step(3)]
    assert growing.renewed == 0


def test_files_that_are_written_one_after_the_other_come_in_order(run: Run) -> None:
    run.begin()
    growing = RunDir(run.path)
    read(growing)
    run.steps(2, 3)
    assert read(growing) == []
    run.add("events.jsonl", line(event(1)) + line(event(4)))
    assert seqs(read(growing)) == [1, 2, 3, 4]


def test_a_later_header_comes_before_the_record_it_is_about(run: Run) -> None:
    run.begin()
    run.steps(1, 2)
    later = Header("headway", axes={"param": ("w",)}, segment=0, seq=2)
    run.add("events.jsonl", line(later))
    found = read(RunDir(run.path))
    assert found == [HEADER, step(1), later, step(2)]


def test_a_resume_goes_on_in_the_next_segment(run: Run) -> None:
    run.begin()
    run.steps(1, 2)
    growing = RunDir(run.path)
    read(growing)
    resumed = StepRecord(1, 1, 2, {"loss": 1.0})
    run.add("steps.rank0.jsonl", line(resumed))
    assert read(growing) == [resumed]


@pytest.mark.parametrize("how", ["cut", "replaced", "rewritten longer"])
def test_a_file_that_is_another_one_is_read_from_its_start(run: Run, how: str) -> None:
    run.begin()
    run.steps(1, 2, 3)
    growing = RunDir(run.path)
    read(growing)
    other = [StepRecord(0, seq, seq, {"loss": 10.0 * seq}) for seq in range(1, 9)]
    other = other[:1] if how == "cut" else other
    path = run.path / "steps.rank0.jsonl"
    if how == "replaced":
        path.rename(run.path / "before")
    path.write_text("".join(map(line, other)))
    assert read(growing) == other
    assert growing.renewed == 1


def test_what_is_no_header_is_refused(run: Run) -> None:
    for text in ("[1]", "{", line(step(1))):
        (run.path / "run.json").write_text(text)
        with pytest.raises(UnreadableInput, match="is not a run header"):
            read(RunDir(run.path))


def test_a_pipe_is_not_waited_for(run: Run) -> None:
    run.begin()
    os.mkfifo(run.path / "steps.rank0.jsonl")
    assert read(RunDir(run.path)) == [HEADER]


def test_the_first_record_follows_on_a_header_that_bears_no_number(run: Run) -> None:
    header = Header("headway")
    (run.path / "run.json").write_text(line(header))
    run.steps(1, 2)
    assert read(RunDir(run.path)) == [header, step(1), step(2)]


def test_a_gap_of_another_run_in_the_same_place_is_waited_for(run: Run, clock: list[float]) -> None:
    run.begin()
    run.steps(1, 3, 4, 5)
    growing = RunDir(run.path)
    read(growing)
    clock[0] += PATIENCE
    assert seqs(read(growing)) == [3, 4, 5]
    (run.path / "steps.rank0.jsonl").write_text(line(step(7)))
    assert read(growing) == []
