"""Writing a run directory: everything arrives, and nothing that happens to the disk stops a run."""

from __future__ import annotations

import errno
import io
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly, quick_folder, same, streams

from headway.core.records import Column, EventRecord, Header, Record, StepRecord
from headway.core.signals import Signal
from headway.rundir import writer as run_dir
from headway.rundir.run_reader import RunDir
from headway.rundir.writer import RunDirWriter

HEADER = Header("headway", signals={"loss": Signal()})


def step(seq: int, *, segment: int = 0, loss: float = 0.5, rank: int = 0) -> StepRecord:
    return StepRecord(segment, seq, seq, {"loss": loss}, rank=rank)


def write(path: Path, records: list[Record], *, rank: int = 0) -> RunDirWriter:
    writer = RunDirWriter(path, rank=rank, notify=pytest.fail)
    for record in records:
        writer.write(record)
    writer.flush()
    return writer


def read(path: Path) -> list[Record]:
    return list(RunDir(path).records())


# What goes in comes out


@lightly
@given(streams())
def test_what_is_written_is_read_back_the_same_and_in_order(stream: list[Record]) -> None:
    with quick_folder() as folder:
        write(folder, stream)
        source = RunDir(folder)
        assert same(list(source.records()), stream)
        assert source.torn == 0
        assert source.lines == len(stream)


@lightly
@given(st.tuples(streams(max_size=6), streams(rank=1, max_size=6), streams(rank=2, max_size=6)))
def test_the_files_of_all_ranks_become_one_stream(ranks: tuple[list[Record], ...]) -> None:
    with quick_folder() as folder:
        for rank, stream in enumerate(ranks):
            write(folder, stream, rank=rank)
        [first, *rest] = [record for stream in ranks for record in stream]
        rest.sort(key=lambda record: (record.segment, record.seq, record.rank))
        assert same(read(folder), [first, *rest])


def test_a_header_stands_before_the_record_whose_number_it_bears(tmp_path: Path) -> None:
    second = Header("headway", signals={"loss": Signal(), "lr": Signal()}, seq=2)
    stream = [HEADER, step(1), second, step(2), step(3)]
    write(tmp_path, stream)
    assert read(tmp_path) == stream


def test_nan_and_the_infinities_come_back(tmp_path: Path) -> None:
    odd = [math.nan, math.inf, -math.inf]
    record = StepRecord(0, 1, 1, dict(zip("abc", odd, strict=True)), {"param/x": Column(odd)})
    write(tmp_path, [HEADER, record])
    assert same(read(tmp_path), [HEADER, record])

    def no_constants(name: str) -> Any:
        pytest.fail(f"bare {name} in a line")

    for path in tmp_path.glob("*.json*"):
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=no_constants)


def test_the_files_are_those_of_the_decision_record(tmp_path: Path) -> None:
    event = EventRecord(0, 2, 1, "action", {"action": "skip"})
    write(tmp_path, [HEADER, step(1), event])
    write(tmp_path, [step(1), event], rank=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "events.jsonl",
        "events.rank3.jsonl",
        "run.json",
        "steps.rank0.jsonl",
        "steps.rank3.jsonl",
    ]
    assert json.loads((tmp_path / "run.json").read_text())["kind"] == "header"


# When lines reach the disk


def on_disk(path: Path) -> int:
    file = path / "steps.rank0.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_lines_are_gathered_for_a_second_and_then_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(run_dir, "time", SimpleNamespace(monotonic=lambda: clock.now))
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    writer.write(HEADER)
    for seq in (1, 2):
        writer.write(step(seq))
    assert on_disk(tmp_path) == 0
    clock.now += run_dir.FLUSH_SECONDS + 0.1
    writer.write(step(3))
    assert on_disk(tmp_path) == 3
    writer.write(step(4))
    assert on_disk(tmp_path) == 3
    writer.write(step(5), now=True)
    assert on_disk(tmp_path) == 5, "at once when something is wrong"


def test_many_bytes_are_written_without_waiting(tmp_path: Path) -> None:
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    wide = StepRecord(0, 1, 1, {}, {"param/x": Column([1 / 3] * 5000)})
    writer.write(wide)
    assert on_disk(tmp_path) == 1
    writer.write(step(2))
    assert on_disk(tmp_path) == 1, "and the count of bytes starts again"


def test_the_header_is_on_disk_at_once(tmp_path: Path) -> None:
    RunDirWriter(tmp_path, notify=pytest.fail).write(HEADER)
    assert read(tmp_path) == [HEADER]


# Resumed runs


def test_a_reopened_directory_gets_the_next_segment(tmp_path: Path) -> None:
    for segment in range(4):
        writer = RunDirWriter(tmp_path, notify=pytest.fail)
        assert writer.segment == segment
        header = Header("headway", facts={"resumed": segment}, segment=segment)
        for record in (header, step(1, segment=segment), step(2, segment=segment)):
            writer.write(record)
        writer.flush()
    stream = read(tmp_path)
    assert [(item.segment, item.seq) for item in stream] == [
        (segment, seq) for segment in range(4) for seq in range(3)
    ]
    assert [item.facts["resumed"] for item in stream if isinstance(item, Header)] == [0, 1, 2, 3]


def test_a_run_that_wrote_nothing_but_its_header_still_counts_as_a_segment(tmp_path: Path) -> None:
    RunDirWriter(tmp_path, notify=pytest.fail).write(HEADER)
    assert RunDirWriter(tmp_path, notify=pytest.fail).segment == 1


def test_the_next_segment_is_found_behind_a_very_long_or_torn_end(tmp_path: Path) -> None:
    huge = StepRecord(6, 1, 1, {}, {"param/x": Column([1 / 3] * 120_000)})
    write(tmp_path, [HEADER, huge])
    assert (tmp_path / "steps.rank0.jsonl").stat().st_size > 2 << 20
    assert RunDirWriter(tmp_path, notify=pytest.fail).segment == 7
    with open(tmp_path / "steps.rank0.jsonl", "ab") as file:
        file.write(b'{"seg":9,"se')
    assert RunDirWriter(tmp_path, notify=pytest.fail).segment == 7


@pytest.mark.parametrize(
    "tail",
    [
        b"\xff\xfe\x00junk",
        b"[" * 100_000,
        b'{"seg":1e999,"seq":0,"step":0,"v":{}}',
        b'{"seg":-5,"seq":0,"step":0,"v":{}}',
        b'{"seg":"7","seq":0,"step":0,"v":{}}',
        b"null\n5\n[]\n{}",
        b"\n\n\n",
    ],
    ids=lambda tail: tail[:20],
)
def test_the_next_segment_is_found_behind_garbage(tmp_path: Path, tail: bytes) -> None:
    write(tmp_path, [HEADER, step(1, segment=3)])
    with open(tmp_path / "steps.rank0.jsonl", "ab") as file:
        file.write(tail)
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    assert writer.segment == 4
    writer.write(step(1, segment=4), now=True)
    assert read(tmp_path) == [HEADER, step(1, segment=3), step(1, segment=4)]


def test_ranks_that_start_together_write_the_same_segment(tmp_path: Path) -> None:
    for segment in (0, 1, 2):
        first = RunDirWriter(tmp_path, notify=pytest.fail)
        first.write(Header("headway", segment=segment))
        first.write(step(1, segment=segment), now=True)
        late = RunDirWriter(tmp_path, rank=1, notify=pytest.fail)  # rank 0 is at work already
        assert (first.segment, late.segment) == (segment, segment)
        late.write(step(1, segment=segment), now=True)


def test_a_directory_that_lost_its_header_gets_one_again(tmp_path: Path) -> None:
    write(tmp_path, [HEADER, step(1)])
    (tmp_path / "run.json").unlink()
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    assert writer.segment == 1
    header = Header("headway", segment=1)
    writer.write(header)
    assert read(tmp_path)[0] == header
    assert step(1) in read(tmp_path)


@pytest.mark.parametrize("name", ["steps.rank0.jsonl", "events.jsonl"])
def test_a_line_torn_at_any_byte_costs_that_line_and_nothing_else(name: str) -> None:
    event = EventRecord(0, 2, 1, "note", {"text": "ünï\u2028"})
    stream: list[Record] = [HEADER, step(1), event, step(3), EventRecord(0, 4, 3, "note", {})]
    resumed: list[Record] = [step(1, segment=1), EventRecord(1, 2, 1, "end")]
    lost = stream[3] if name.startswith("steps") else stream[4]
    with quick_folder() as folder:
        write(folder, stream)
        files = {path: path.read_bytes() for path in folder.iterdir()}
        whole = files[folder / name]
        begin = whole.rstrip(b"\n").rfind(b"\n") + 1
        for cut in range(begin, len(whole) + 1):
            files[folder / name] = whole[:cut]
            for path, data in files.items():
                path.write_bytes(data)
            complete = cut >= len(whole) - 1  # only the newline may be missing
            kept = [item for item in stream if complete or item is not lost]
            torn = 0 if complete or cut == begin else 1
            source = RunDir(folder)
            assert list(source.records()) == kept, cut
            assert source.torn == torn

            assert write(folder, resumed).segment == 1
            source = RunDir(folder)
            assert list(source.records()) == [*kept, *resumed], cut
            assert source.torn == torn


def test_what_was_flushed_survives_kill_9(tmp_path: Path) -> None:
    program = f"""
from headway.rundir.writer import RunDirWriter
from headway.core.records import Header, StepRecord
writer = RunDirWriter({str(tmp_path)!r}, notify=print)
writer.write(Header("headway"))
for seq in range(1, 10**9):
    writer.write(StepRecord(0, seq, seq, {{"loss": 0.5}}), now=True)
    if seq == 20:
        print("ready", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    source = RunDir(tmp_path)
    steps = [record.seq for record in source.records() if isinstance(record, StepRecord)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 20
    assert source.torn <= 1


# When the disk fails


class Told:
    """Collects what the run was told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def __call__(self, text: str) -> None:
        self.sentences.append(text)

    def exactly_once(self, words: str) -> None:
        assert len(self.sentences) == 1, self.sentences
        assert words in self.sentences[0]
        assert "training continues" in self.sentences[0]


def keep_writing(writer: RunDirWriter, count: int = 5) -> None:
    writer.write(HEADER)
    for seq in range(1, count):
        writer.write(step(seq), now=True)
        writer.write(EventRecord(0, seq, seq, "note"))
    writer.flush()


def test_a_file_in_place_of_the_directory_is_told_once(tmp_path: Path) -> None:
    told, place = Told(), tmp_path / "run"
    place.write_text("not a folder")
    writer = RunDirWriter(place, notify=told)
    assert writer.broken
    assert writer.segment == 0
    keep_writing(writer)
    told.exactly_once(str(place))
    assert place.read_text() == "not a folder"


def test_a_file_in_place_of_a_parent_is_told_once(tmp_path: Path) -> None:
    told = Told()
    (tmp_path / "runs").write_text("not a folder")
    keep_writing(RunDirWriter(tmp_path / "runs" / "a" / "b", notify=told))
    told.exactly_once("Not a directory")


@pytest.mark.parametrize("name", ["steps.rank0.jsonl", "events.jsonl"])
def test_a_folder_in_place_of_a_file_is_told_once(tmp_path: Path, name: str) -> None:
    told = Told()
    (tmp_path / name).mkdir()
    keep_writing(RunDirWriter(tmp_path, notify=told))
    told.exactly_once("Is a directory")


def test_a_directory_that_vanishes_is_told_once(tmp_path: Path) -> None:
    told, place = Told(), tmp_path / "run"
    writer = RunDirWriter(place, notify=told)
    shutil.rmtree(place)
    keep_writing(writer)
    told.exactly_once("No such file or directory")
    assert not place.exists()


def test_an_impossible_path_is_told_once(tmp_path: Path) -> None:
    for name in ("nul\0byte", "x" * 5000):
        told = Told()
        keep_writing(RunDirWriter(tmp_path / name, notify=told))
        assert len(told.sentences) == 1


def test_a_read_only_file_system_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the refusal is acted."""

    def refuse(self: Path, data: bytes) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    told = Told()
    keep_writing(RunDirWriter(tmp_path, notify=told))
    told.exactly_once("Read-only file system")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    told = Told()
    (tmp_path / "steps.rank0.jsonl").symlink_to("/dev/full")
    keep_writing(RunDirWriter(tmp_path, notify=told))
    told.exactly_once("No space left on device")


class FullAfter:
    """An `open` whose files hold so many bytes in all, and then no more, as a disk does."""

    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self, path: Path, mode: str) -> Any:
        file = open(path, mode)  # noqa: SIM115 - it is handed on, as open does
        if "a" not in mode:
            return file
        disk = self

        class Full(io.BufferedWriter):
            def write(self, data: Any) -> int:
                fits, disk.free = data[: disk.free], max(0, disk.free - len(data))
                super().write(fits)
                if len(fits) < len(data):
                    raise OSError(errno.ENOSPC, "No space left on device")
                return len(data)

        return Full(file.detach())


@pytest.mark.parametrize("free", [0, 1, 40, 41, 42, 100, 150, 200, 250])
def test_a_disk_that_fills_up_costs_the_rest_and_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    told = Told()
    monkeypatch.setattr(run_dir, "open", FullAfter(free), raising=False)
    writer = RunDirWriter(tmp_path, notify=told)
    stream: list[Record] = [HEADER, *(step(seq) for seq in range(1, 20))]
    for record in stream:
        writer.write(record, now=True)
    told.exactly_once("No space left on device")
    monkeypatch.undo()
    source = RunDir(tmp_path)
    kept = list(source.records())
    assert kept == stream[: len(kept)]
    assert source.torn <= 1


def test_a_record_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    told = Told()
    writer = RunDirWriter(tmp_path, notify=told)
    writer.write(StepRecord(0, 1, 1, {"loss": None}))  # type: ignore[dict-item]
    told.exactly_once("cannot write the run directory")
    keep_writing(writer)
    assert len(told.sentences) == 1


def test_a_broken_writer_keeps_nothing_in_memory(tmp_path: Path) -> None:
    writer = RunDirWriter(tmp_path / "run", notify=Told())
    writer.write(step(1))
    writer.write(EventRecord(0, 2, 1, "note"))
    shutil.rmtree(tmp_path / "run")
    writer.flush()
    assert writer.broken
    for seq in range(1000):
        writer.write(step(seq))
    assert not writer._steps
    assert not writer._events
