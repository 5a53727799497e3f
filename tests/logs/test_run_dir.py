"""Reading a run directory, however it was damaged."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import junk, lightly, mutated, quick_folder, same, streams

from headway.core.codec import to_json
from headway.core.records import Column, EventRecord, Header, Record, SetupRecord, StepRecord
from headway.core.signals import Signal
from headway.errors import UnreadableInput
from headway.rundir import run_reader
from headway.rundir.run_reader import RunDir, is_run_dir
from headway.rundir.writer import RunDirWriter

HEADER = Header("headway", signals={"loss": Signal()}, axes={"param": ("a", "b")})
STEPS = "steps.rank0.jsonl"


def step(seq: int, *, segment: int = 0, rank: int = 0) -> StepRecord:
    return StepRecord(segment, seq, seq, {"loss": 0.5}, rank=rank)


def line(record: Record) -> bytes:
    return json.dumps(to_json(record)).encode() + b"\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with a header, four steps and an event."""
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    for record in (HEADER, step(1), step(2), EventRecord(0, 3, 2, "note"), step(4), step(5)):
        writer.write(record)
    writer.flush()
    return tmp_path


def numbers(source: RunDir) -> list[int]:
    return [record.seq for record in source.records()]


# What is a run directory


def test_a_run_directory_is_a_folder_with_a_header(run: Path, tmp_path: Path) -> None:
    assert is_run_dir(run)
    assert not is_run_dir(run / "run.json")
    assert not is_run_dir(tmp_path / "missing")
    (run / "run.json").unlink()
    assert not is_run_dir(run)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"not json",
        b"\xff\xfe\x00\x01",
        b"[" * 100_000,
        line(step(1)),
        b'{"kind":"header","source":"x","signals":[],"axes":{}}',
        b'{"kind":"header","source":"x","signals":{"loss":5},"axes":{}}',
        b'{"kind":"header","source":"x","signals":{},"axes":{"param":5}}',
    ],
    ids=lambda text: text[:40],
)
def test_a_header_that_is_none_makes_the_directory_unreadable(run: Path, text: bytes) -> None:
    (run / "run.json").write_bytes(text)
    with pytest.raises(UnreadableInput, match="is not a run header"):
        list(RunDir(run).records())


def test_a_header_that_is_missing_makes_the_directory_unreadable(run: Path) -> None:
    (run / "run.json").unlink()
    with pytest.raises(UnreadableInput, match="cannot read"):
        list(RunDir(run).records())
    (run / "run.json").mkdir()
    with pytest.raises(UnreadableInput, match="cannot read"):
        list(RunDir(run).records())


def test_a_file_that_fails_while_being_read_makes_the_directory_unreadable(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *error: object) -> None: ...

        def readline(self, size: int) -> bytes:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(run_reader, "open", lambda *_: Failing(), raising=False)
    with pytest.raises(UnreadableInput, match="Input/output error"):
        list(RunDir(run).records())


def test_a_header_alone_is_a_run_without_steps(run: Path) -> None:
    for path in run.glob("*.jsonl"):
        path.unlink()
    assert list(RunDir(run).records()) == [HEADER]


def test_other_files_in_the_directory_are_left_alone(run: Path) -> None:
    (run / "notes.jsonl").write_text("{}")
    (run / "snapshots").mkdir()
    (run / "steps.rank7.jsonl").mkdir()
    source = RunDir(run)
    assert numbers(source) == [0, 1, 2, 3, 4, 5]
    assert source.torn == 0


# Damage

JUNK = [
    pytest.param(b"garbage\n", id="text"),
    pytest.param(b"\x00\xff\xfe\x80 \x01\n", id="binary"),
    pytest.param(b"\x00\x00\x00\x00\n", id="zeros, as a lost page leaves them"),
    pytest.param(b'{"seg":0,"seq":3,"st\n', id="torn"),
    pytest.param(b"[1,2,3]\n", id="a list"),
    pytest.param(b"null\n", id="null"),
    pytest.param(b"{}\n", id="an empty object"),
    pytest.param(b'{"kind":"novel","seg":0,"seq":3}\n', id="a kind of a later version"),
    pytest.param(b'{"seg":0,"seq":3,"step":3,"v":{"loss":"high"}}\n', id="text for a number"),
    pytest.param(b'{"seg":0,"seq":-3,"step":3,"v":{}}\n', id="a negative place"),
    pytest.param(b'{"seg":0,"seq":3,"step":3,"v":{"l":1' + b"0" * 999 + b"}}\n", id="huge number"),
    pytest.param(b'{"seg":1' + b"0" * 9999 + b',"seq":3,"step":3,"v":{}}\n', id="huge place"),
    pytest.param(b"[" * 200_000 + b"\n", id="deep nesting"),
    pytest.param(b'{"seg":0,"seq":1,"step":1,"v":{}}\n', id="out of order"),
]


@pytest.mark.parametrize("damage", JUNK)
def test_a_damaged_line_is_skipped_and_counted(run: Path, damage: bytes) -> None:
    lines = (run / STEPS).read_bytes().splitlines(keepends=True)
    (run / STEPS).write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    source = RunDir(run)
    assert numbers(source) == [0, 1, 2, 3, 4, 5]
    assert source.torn == 1
    assert source.lines == 7


def test_empty_lines_are_nothing(run: Path) -> None:
    text = (run / STEPS).read_bytes().replace(b"\n", b"\r\n\n   \n")
    (run / STEPS).write_bytes(text)
    source = RunDir(run)
    assert numbers(source) == [0, 1, 2, 3, 4, 5]
    assert source.torn == 0


@pytest.mark.parametrize("at_once", [1, 1 << 16])
def test_a_giant_line_is_skipped_whole_and_counted_once(
    run: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(run_reader, "LONGEST_LINE", 300)
    monkeypatch.setattr(run_reader, "AT_ONCE", (1, at_once))
    lines = (run / STEPS).read_bytes().splitlines(keepends=True)
    # However it is cut into pieces, no piece of it may be taken for a record.
    giant = b" " * 300 + line(step(3)).rstrip() + b" " * 1000 + line(step(3))
    (run / STEPS).write_bytes(b"".join([*lines[:2], giant, *lines[2:]]))
    source = RunDir(run)
    assert numbers(source) == [0, 1, 2, 3, 4, 5]
    assert len([item for item in RunDir(run).records() if isinstance(item, StepRecord)]) == 4
    assert source.torn == 1


def test_a_line_of_exactly_the_longest_length_is_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = line(step(6))
    with open(run / STEPS, "ab") as file:
        file.write(last)
    monkeypatch.setattr(run_reader, "LONGEST_LINE", len(last))
    assert numbers(RunDir(run))[-1] == 6


def test_a_giant_last_line_without_an_end_is_skipped(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reader, "LONGEST_LINE", 300)
    with open(run / STEPS, "ab") as file:
        file.write(b"x" * 10_000)
    source = RunDir(run)
    assert numbers(source) == [0, 1, 2, 3, 4, 5]
    assert source.torn == 1


@lightly
@given(st.lists(junk, max_size=5), st.binary(max_size=50))
def test_lines_of_any_json_or_bytes_never_stop_the_reading(
    lines: list[object], tail: bytes
) -> None:
    with quick_folder() as folder:
        (folder / "run.json").write_bytes(line(HEADER))
        text = "".join(json.dumps(item) + "\n" for item in lines).encode()
        (folder / STEPS).write_bytes(text + tail)
        places = [(item.segment, item.seq) for item in RunDir(folder).records()][1:]
        assert places == sorted(places)


# Ranks


def test_the_rank_is_in_the_name_of_the_file(run: Path) -> None:
    (run / "steps.rank12.jsonl").write_bytes(line(step(2, rank=12)))
    (run / "events.rank12.jsonl").write_bytes(line(EventRecord(0, 4, 2, "note", rank=12)))
    seen = [(item.seq, item.rank) for item in RunDir(run).records()]
    assert seen == [(0, 0), (1, 0), (2, 0), (2, 12), (3, 0), (4, 0), (4, 12), (5, 0)]


def test_damage_in_one_ranks_file_costs_the_others_nothing(run: Path) -> None:
    (run / "steps.rank1.jsonl").write_bytes(b"\xff" * 1000 + b"\n" + line(step(1, rank=1)))
    source = RunDir(run)
    assert [(item.seq, item.rank) for item in source.records() if item.rank] == [(1, 1)]
    assert source.torn == 1


# Many ranks

AHEAD = st.integers(1, 400)


@lightly
@given(st.tuples(streams(), streams(rank=1), streams(rank=2)), AHEAD)
def test_however_little_is_read_at_once_the_stream_is_the_same(
    ranks: tuple[list[Record], ...], ahead: int
) -> None:
    with quick_folder() as folder, pytest.MonkeyPatch.context() as patch:
        for rank, stream in enumerate(ranks):
            writer = RunDirWriter(folder, rank=rank, notify=pytest.fail)
            for record in stream:
                writer.write(record)
            writer.flush()
        whole = list(RunDir(folder).records())
        patch.setattr(run_reader, "AT_ONCE", (1, ahead))
        patch.setattr(run_reader, "AHEAD", ahead)
        assert same(list(RunDir(folder).records()), whole)


def many_ranks(path: Path, ranks: int, steps: int) -> None:
    path.mkdir()
    (path / "run.json").write_bytes(line(HEADER))
    for rank in range(ranks):
        text = b"".join(line(step(seq)) for seq in range(1, steps + 1))
        (path / f"steps.rank{rank}.jsonl").write_bytes(text)


READ_UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
from headway.rundir.run_reader import RunDir
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
places = [(item.seq, item.rank) for item in RunDir(Path(sys.argv[1])).records()][1:]
assert places == sorted(places)
print(len(places))
"""


def test_more_ranks_than_a_process_may_open_files_are_read_in_order(tmp_path: Path) -> None:
    many_ranks(tmp_path / "run", 1500, steps=30)
    command = [sys.executable, "-c", READ_UNDER_A_LIMIT, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == str(1500 * 30)


@pytest.mark.parametrize("ranks", [10, 500])
def test_what_is_read_ahead_of_many_files_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr(run_reader, "AHEAD", 1 << 16)
    many_ranks(tmp_path / "run", ranks, steps=100)  # 5 kB a rank
    tracemalloc.start()
    try:
        stream = RunDir(tmp_path / "run").records()
        list(itertools.islice(stream, 2))  # every file is begun
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # A generator and a record a file, and at least a kilobyte of lines.
    assert held < (1 << 18) + 7_000 * ranks


# Fuzzing


def a_real_run(path: Path) -> None:
    rng = random.Random(1)
    for rank in (0, 1):
        writer = RunDirWriter(path, rank=rank, notify=pytest.fail)
        writer.write(HEADER)
        writer.write(SetupRecord(0, 1, "parameters", {"names": ["a", "b"], "numel": [3, 4]}))
        for seq in range(2, 6):
            values = {"loss": rng.random(), "lr": 1e-3, "grad_norm": float("nan")}
            norms = Column([rng.random()], [seq % 2])
            writer.write(StepRecord(0, seq, seq, values, {"param/grad_norm": norms}, held=seq == 4))
        writer.write(EventRecord(0, 9, 7, "action", {"action": "skip", "reason": "NaN"}))
        writer.flush()


@pytest.mark.parametrize("seed", range(3))
def test_a_mutated_directory_is_unreadable_or_gives_a_clean_stream(seed: int) -> None:
    rng = random.Random(seed)
    read, refused = 0, 0
    with quick_folder() as folder:
        a_real_run(folder)
        original = {path: path.read_bytes() for path in sorted(folder.glob("*.json*"))}
        assert len(original) == 5
        for _ in range(1000):
            path = rng.choice(list(original))
            data = original[path]
            for _ in range(rng.choice([1, 1, 2, 5])):
                data = mutated(data, rng)
            path.write_bytes(data)
            try:
                stream = list(RunDir(folder).records())
            except UnreadableInput:
                refused += 1
                assert path.name == "run.json", "only the header can make a directory unreadable"
            else:
                read += 1
                assert isinstance(stream[0], Header)
                places = [(item.segment, item.seq, item.rank) for item in stream[1:]]
                assert places == sorted(places)
                for record in stream:
                    json.dumps(to_json(record), allow_nan=False)
            path.write_bytes(original[path])
    assert read > 700
    assert refused > 50


# Memory


def long_run(path: Path, count: int) -> None:
    path.mkdir()
    (path / "run.json").write_bytes(line(HEADER))
    head = '{"seg":0,"seq":%d,"step":%d,"v":{"loss":0.5,"grad_norm":1.25,"lr":0.001}}\n'
    for rank in (0, 1):
        with open(path / f"steps.rank{rank}.jsonl", "w") as file:
            file.writelines(head % (seq, seq) for seq in range(1, count // 2 + 1))


def peak_bytes(stream: Iterator[Record], count: int) -> int:
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream) == count + 1
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_a_run_of_any_length_is_read_in_the_same_small_memory(tmp_path: Path, count: int) -> None:
    long_run(tmp_path / "run", count)
    assert peak_bytes(RunDir(tmp_path / "run").records(), count) < 1_000_000


def test_reading_is_lazy(run: Path) -> None:
    source = RunDir(run)
    stream = source.records()
    assert list(itertools.islice(stream, 2)) == [HEADER, step(1)]
    assert source.lines < 6, "not all was read"
    shutil.rmtree(run)
    stream.close()  # type: ignore[attr-defined]
