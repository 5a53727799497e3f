"""A run directory read while it grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.core.codec import to_json
from holdfast.core.records import EventRecord, Header, Record, StepRecord
from holdfast.errors import UnreadableInput
from holdfast.sources.follow import PATIENCE, Follow

HEADER = Header("holdfast", segment=0, seq=1)


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


def seqs(records: list[Record]) -> list[int]:
    return [record.seq for record in records]


def test_nothing_before_the_header_then_only_what_is_new(run: Run) -> None:
    follow = Follow(run.path)
    assert follow.read() == []
    run.begin()
    assert follow.read() == [HEADER]
    run.steps(1, 2)
    assert follow.read() == [step(1), step(2)]
    assert follow.read() == []
    run.steps(3)
    assert follow.read() == [step(3)]


def test_half_a_line_is_left_for_the_next_time(run: Run) -> None:
    run.begin()
    follow = Follow(run.path)
    follow.read()
    whole = line(step(1))
    run.add("steps.rank0.jsonl", whole[:10])
    assert follow.read() == []
    run.add("steps.rank0.jsonl", whole[10:])
    assert follow.read() == [step(1)]
    assert follow.torn == 0


def test_a_torn_line_is_counted_and_waited_past(run: Run) -> None:
    run.begin()
    run.steps(1)
    run.add("steps.rank0.jsonl", '{"seg": 0, "seq\n\n\x00\n')
    run.steps(3, 4)
    follow = Follow(run.path)
    assert follow.read() == [HEADER, step(1)]
    assert follow.torn == 2
    found: list[Record] = []
    for _ in range(PATIENCE):
        assert follow.waiting
        found += follow.read()
    assert found == [step(3), step(4)]
    assert not follow.waiting


def test_files_that_are_written_one_after_the_other_come_in_order(run: Run) -> None:
    run.begin()
    follow = Follow(run.path)
    follow.read()
    run.steps(2, 3)
    assert follow.read() == []
    run.add("events.jsonl", line(event(1)) + line(event(4)))
    assert seqs(follow.read()) == [1, 2, 3, 4]


def test_a_later_header_comes_before_the_record_it_is_about(run: Run) -> None:
    run.begin()
    run.steps(1, 2)
    later = Header("holdfast", axes={"param": ("w",)}, segment=0, seq=2)
    run.add("events.jsonl", line(later))
    found = Follow(run.path).read()
    assert found == [HEADER, step(1), later, step(2)]


def test_a_resume_goes_on_in_the_next_segment(run: Run) -> None:
    run.begin()
    run.steps(1, 2)
    follow = Follow(run.path)
    follow.read()
    resumed = StepRecord(1, 1, 2, {"loss": 1.0})
    run.add("steps.rank0.jsonl", line(resumed))
    assert follow.read() == [resumed]


def test_a_file_that_was_replaced_is_read_from_its_start(run: Run) -> None:
    run.begin()
    run.steps(1, 2, 3)
    follow = Follow(run.path)
    follow.read()
    (run.path / "steps.rank0.jsonl").write_text(line(step(1)))
    assert follow.read() == [step(1)]


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="is not a run directory"):
        Follow(tmp_path / "nothing").read()
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(UnreadableInput, match="is not a run header"):
        Follow(tmp_path).read()
