"""What a rank among thousands writes down."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from support.strategies import lightly, quick_folder, same, streams

from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Record,
    SetupRecord,
    StepRecord,
    TensorRecord,
)
from headway.core.signals import Signal
from headway.rundir.run_reader import RunDir
from headway.rundir.writer import FULL_RANKS, RunDirWriter, SparseRankFilter

RANK = 700
HEADER = Header("headway", signals={"loss": Signal()}, world_size=1000, rank=RANK)


def held(*guilty: int) -> StepRecord:
    column = {"rank/nonfinite": Column([1.0] * len(guilty), list(guilty))} if guilty else {}
    return StepRecord(0, 5, 4, {"loss": 1.0}, column, held=True, rank=RANK)


def write(path: Path, *records: Record, rank: int = RANK, **options: int) -> list[str]:
    """The names of the files that came of it."""
    writer = RunDirWriter(path, rank=rank, notify=pytest.fail, **options)
    for record in records:
        writer.write(record, now=True)
    return sorted(item.name for item in path.iterdir())


def test_a_healthy_rank_leaves_no_file(tmp_path: Path) -> None:
    steps = [StepRecord(0, at, at, {"loss": 1.0}, rank=RANK) for at in range(1, 200)]
    assert write(tmp_path, HEADER, SetupRecord(0, 1, "parameters", {}), *steps) == []


def test_thousands_of_ranks_do_not_all_try_whether_they_could_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_bytes", pytest.fail)
    assert write(tmp_path, HEADER) == []


def test_what_a_rank_alone_can_tell_is_written_after_its_header(tmp_path: Path) -> None:
    bad = TensorRecord(0, 6, 4, "x", "input", stats={"nan": 1.0}, rank=RANK)
    assert write(tmp_path, HEADER, held(RANK), bad) == [
        f"events.rank{RANK}.jsonl",
        f"steps.rank{RANK}.jsonl",
    ]
    (tmp_path / "run.json").write_text('{"kind":"header","source":"x","signals":{},"axes":{}}')
    _, *records = RunDir(tmp_path).records()
    assert same(records, [HEADER, held(RANK), bad])


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (held(RANK), True),
        (held(3, RANK), True),
        (held(3), False),
        (held(), False),
        (StepRecord(0, 5, 4, {"loss": 1.0}), False),
        (EventRecord(0, 5, 4, "exception"), True),
        (EventRecord(0, 5, 4, "check-crashed"), True),
        (EventRecord(0, 5, 4, "action"), False),
        (EventRecord(0, 5, 4, "scan"), False),
        (EventRecord(0, 5, 4, "end"), False),
        (SetupRecord(0, 5, "parameters", {}), False),
        (TensorRecord(0, 5, 4, "x", "input"), True),
    ],
)
def test_only_news_of_its_own_is_told(record: Record, told: bool) -> None:
    assert SparseRankFilter(RANK).choose(record) == ([record] if told else [])


def test_the_latest_header_is_written_and_only_once() -> None:
    sparse, later = SparseRankFilter(RANK), Header("headway", seq=3, rank=RANK)
    event = EventRecord(0, 5, 4, "exception")
    assert sparse.choose(HEADER) == sparse.choose(later) == []
    assert sparse.choose(event) == [later, event]
    assert sparse.choose(event) == [event]


@pytest.mark.parametrize(
    ("rank", "options", "sparse"),
    [
        (0, {}, False),
        (FULL_RANKS - 1, {}, False),
        (FULL_RANKS, {}, True),
        (0, {"full_ranks": 0}, False),
        (1, {"full_ranks": 0}, True),
        (9, {"full_ranks": 10}, False),
    ],
)
def test_the_first_ranks_write_every_step_and_rank_0_always(
    tmp_path: Path, rank: int, options: dict[str, int], sparse: bool
) -> None:
    step = StepRecord(0, 1, 1, {"loss": 1.0}, rank=rank)
    files = write(tmp_path, Header("headway", rank=rank), step, rank=rank, **options)
    assert (f"steps.rank{rank}.jsonl" in files) is not sparse


@lightly
@given(streams(rank=RANK))
def test_what_is_written_is_a_part_of_the_stream_in_its_order(stream: list[Record]) -> None:
    sparse = SparseRankFilter(RANK)
    chosen = [item for record in stream for item in sparse.choose(record)]
    rest = iter(stream)
    assert all(any(item is record for record in rest) for item in chosen)
    own = [record for record in stream if isinstance(record, TensorRecord)]
    assert all(any(item is record for item in chosen) for record in own)
    with quick_folder() as folder:
        write(folder, *stream)
        written = list(folder.glob("*.jsonl"))
    assert bool(written) == bool(chosen)
