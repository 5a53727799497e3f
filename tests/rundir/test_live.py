"""The charts of a run that grows, is cut, goes back, or is damaged; and of one not read yet."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from support.report_runs import ranks_run

from headway.core.codec import to_json
from headway.core.records import Column, EventRecord, Header, Record, StepRecord
from headway.rundir import live_charts, run_files, step_columns
from headway.rundir.chart_data import ChartData, build_charts
from headway.rundir.heat_map import BAD, CELLS
from headway.rundir.live_charts import LiveCharts, read_charts
from headway.rundir.run_reader import RunDir
from headway.rundir.timeline import StepIndex

HEADER = Header("headway", axes={"param": ("a", "b", "c")}, facts={"models": ["Net"]})


def _line(record: Record) -> str:
    return json.dumps(to_json(record), separators=(",", ":")) + "\n"


def _write(
    run: Path, steps: Iterable[Record], events: Iterable[Record] = (), rank: int = 0
) -> Path:
    run.mkdir(exist_ok=True)
    if not (run / "run.json").exists():
        (run / "run.json").write_text(_line(HEADER))
    with open(run / f"steps.rank{rank}.jsonl", "a") as file:
        file.writelines(map(_line, steps))
    with open(run / (f"events.rank{rank}.jsonl" if rank else "events.jsonl"), "a") as file:
        file.writelines(map(_line, events))
    return run


def _steps(first: int, last: int, **special: float) -> list[Record]:
    """Losses between 1 and 2; `s17=9.0` is the loss of step 17. Tensors at every tenth step."""
    rng = random.Random(first)
    return [
        StepRecord(
            0,
            at + 1,
            at,
            {"loss": special.get(f"s{at}", 1 + rng.random()), "lr": 0.1},
            {"param/grad_norm": Column([1.0, 2.0, float(at + 1)])} if at % 10 == 0 else {},
        )
        for at in range(first, last)
    ]


def _read(timeline: LiveCharts) -> LiveCharts:
    while timeline.read():
        pass
    return timeline


def _points(data: ChartData, name: str = "loss") -> dict[int, float]:
    x, y = data.series[name].points()
    return dict(zip(x.tolist(), y.tolist(), strict=True))


def _same(one: ChartData, other: ChartData) -> None:
    assert one.series.keys() == other.series.keys()
    for name in one.series:
        assert _points(one, name) == _points(other, name)
        assert one.series[name].gaps() == other.series[name].gaps()
    assert one.held.points()[0].tolist() == other.held.points()[0].tolist()
    assert one.jumps == other.jumps
    assert one.end == other.end
    assert one.marks == other.marks
    assert one.steps == other.steps
    assert one.facts == other.facts
    assert one.maps.keys() == other.maps.keys()
    for name in one.maps:
        assert one.maps[name].codes.tolist() == other.maps[name].codes.tolist()
        assert list(one.maps[name].rows) == list(other.maps[name].rows)


def test_the_same_as_record_by_record(tmp_path: Path) -> None:
    steps = _steps(0, 4000, s1234=math.nan, s2345=1e9, s3000=math.inf)
    steps[1500] = StepRecord(
        0, 1501, 1500, {"loss": 1.5, "grad_norm": 8.0, "clip_coef": 0.125}, held=True
    )
    back: list[Record] = [
        StepRecord(1, 5000 + at, 3500 + at, {"loss": 1.0}, {"param/grad_norm": Column([5.0, 6.0])})
        for at in range(800)
    ]
    events: list[Record] = [
        EventRecord(0, 1502, 1500, "action", {"action": "skip", "reason": "a spike"}),
        EventRecord(0, 4100, 3999, "action", {"action": "roll-back"}),
        Header(
            "headway", axes={"param": ["c", "d"]}, facts={"models": ["Net"]}, segment=1, seq=5000
        ),
        EventRecord(1, 5900, 4299, "note", {"text": "the end"}),
    ]
    run = _write(tmp_path / "run", [*steps, *back], events)
    _same(read_charts(run), build_charts(RunDir(run).records()))


def test_a_zoom_is_read_again_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "AT_ONCE", 1 << 12)
    run = _write(tmp_path / "run", _steps(0, 20_000, s777=math.nan, s12345=50.0))
    timeline = _read(LiveCharts(RunDir(run), buckets=64))
    assert timeline.progress == 1.0
    whole = timeline.window(points=64)
    assert whole.series["loss"].width > 1
    assert _points(whole)[12_345] == 50.0
    assert [(gap.first, gap.count) for gap in whole.series["loss"].gaps()] == [(777, 1)]
    close = timeline.window(12_300, 12_360, points=64)
    assert list(_points(close)) == list(range(12_300, 12_361))
    assert close.maps["param/grad_norm"].codes.shape[0] == 3
    assert timeline.window(700, 760, points=64).series["loss"].gaps() == []
    assert [gap.first for gap in timeline.window(770, 780, points=64).series["loss"].gaps()] == [
        777
    ]


def test_every_zoom_shows_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_charts, "CLOSE_ROWS", 500)
    run = _write(tmp_path / "run", _steps(0, 5000, s2222=math.nan, s3333=50.0))
    timeline = _read(LiveCharts(RunDir(run), buckets=128))
    rng = random.Random(0)
    for _ in range(60):
        first = rng.randrange(3333)
        last = rng.randrange(3334, 5200)
        data = timeline.window(first, last, points=rng.choice([2, 16, 128]))
        assert max(_points(data).values()) == 50.0
        seen = [gap for gap in data.series["loss"].gaps() if gap.first <= 2222 <= gap.last]
        assert bool(seen) == (first <= 2222)


@pytest.mark.parametrize("ends", [(-5, 3), (7, 2), (10**30, 10**31), (0, 10**30), (None, 0)])
def test_odd_windows(tmp_path: Path, ends: tuple[int | None, int]) -> None:
    timeline = _read(LiveCharts(RunDir(_write(tmp_path / "run", _steps(0, 50)))))
    assert timeline.window(*ends, points=0).end == 49


def test_a_sketch_at_once_then_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_charts, "SKETCH_PLACES", 20)
    monkeypatch.setattr(live_charts, "SKETCH_BYTES", 400)
    monkeypatch.setattr(run_files.FileTail.read, "__defaults__", (1 << 12,))
    run = _write(tmp_path / "run", _steps(0, 5000, s2222=math.nan))
    timeline = LiveCharts(RunDir(run))
    first = timeline.window()
    assert not first.exact
    assert first.progress < 0.5
    assert first.end > 4900
    assert 20 < len(_points(first)) < 1000
    before = first.progress
    while timeline.read(0.0):
        data = timeline.window()
        assert data.progress >= before
        assert data.end > 4900
        before = data.progress
    whole = timeline.window()
    assert whole.exact
    assert [gap.first for gap in whole.series["loss"].gaps()] == [2222]


def test_news(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", _steps(0, 100))
    timeline = _read(LiveCharts(RunDir(run)))
    first = timeline.since("")
    assert first.reset
    assert timeline.since(first.cursor).data is None
    _write(run, _steps(100, 130), [EventRecord(0, 131, 130, "action", {"action": "skip"})])
    _read(timeline)
    news = timeline.since(first.cursor)
    assert not news.reset
    assert news.data is not None
    assert list(_points(news.data)) == list(range(100, 130))
    assert [mark.kind for mark in news.data.marks] == ["action"]
    assert timeline.since(news.cursor).data is None
    for strange in ("x", "1.2.3.4", news.cursor + ".5", "…", news.cursor.rpartition(".")[0] + ".z"):
        assert timeline.since(strange).reset


def test_news_from_too_long_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_charts, "RECENT_ROWS", 50)
    timeline = _read(LiveCharts(RunDir(_write(tmp_path / "run", _steps(0, 100)))))
    cursor = timeline.since("").cursor
    for at in range(100, 400, 20):
        _write(timeline.run.path, _steps(at, at + 20))
        _read(timeline)
    assert timeline.since(cursor).reset


def test_a_line_that_is_half_written_waits(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", _steps(0, 10))
    timeline = _read(LiveCharts(RunDir(run)))
    whole = _line(_steps(10, 11)[0])
    with open(run / "steps.rank0.jsonl", "a") as file:
        file.write(whole[:20])
        file.flush()
        assert not timeline.read()
        assert timeline.window().end == 9
        file.write(whole[20:])
    _read(timeline)
    assert timeline.window().end == 10


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", _steps(0, 200))
    timeline = _read(LiveCharts(RunDir(run)))
    cursor = timeline.since("").cursor
    lines = (run / "steps.rank0.jsonl").read_bytes().splitlines(keepends=True)
    (run / "steps.rank0.jsonl").write_bytes(b"".join(lines[:50]))
    _read(timeline)
    assert timeline.since(cursor).reset
    assert timeline.window().end == 49


def test_a_zoom_after_the_run_went_back(tmp_path: Path) -> None:
    back: list[Record] = [
        StepRecord(1, 5000 + at, 1000 + at, {"loss": 7.0 + at}) for at in range(2000)
    ]
    timeline = _read(
        LiveCharts(RunDir(_write(tmp_path / "run", [*_steps(0, 3000), *back])), buckets=64)
    )
    data = timeline.window(2990, 3009, points=64)
    assert list(_points(data)) == list(range(2990, 3010))
    assert [_points(data)[x] for x in range(3000, 3010)] == [7.0 + at for at in range(10)]


def test_a_later_header_is_heard_without_tensors(tmp_path: Path) -> None:
    later = Header("headway", facts={"max_norm": 1.0}, seq=3)
    run = _write(tmp_path / "run", [StepRecord(0, 3, 0, {"loss": 1.0})], [later])
    assert read_charts(run).facts == {"models": ["Net"], "max_norm": 1.0}


@pytest.mark.parametrize("how", ["cut", "replaced", "rewritten longer"])
def test_a_file_that_is_another_one(tmp_path: Path, how: str) -> None:
    run = _write(tmp_path / "run", _steps(0, 200))
    timeline = _read(LiveCharts(RunDir(run)))
    cursor = timeline.since("").cursor
    path = run / "steps.rank0.jsonl"
    fresh = [StepRecord(0, at + 7, at, {"loss": 5.0}) for at in range(40 if how == "cut" else 900)]
    if how == "replaced":
        (run / "other").write_text("".join(map(_line, fresh)))
        (run / "other").replace(path)
    else:
        path.write_text("".join(map(_line, fresh)))
    _read(timeline)
    assert timeline.since(cursor).reset
    data = timeline.window()
    assert set(_points(data).values()) == {5.0}
    assert data.steps == len(fresh)


def test_a_run_that_is_not_there_yet(tmp_path: Path) -> None:
    timeline = LiveCharts(RunDir(tmp_path / "run"))
    assert not timeline.read()
    assert timeline.header is None
    assert timeline.run.ranks() == []
    assert timeline.window().series == {}
    _write(tmp_path / "run", _steps(0, 5))
    _read(timeline)
    assert timeline.header == HEADER
    assert timeline.run.ranks() == [0]
    assert timeline.window().steps == 5


def test_ranks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    header = Header("headway", world_size=3)
    (run / "run.json").write_text(_line(header))
    for rank in (0, 2):
        _write(run, [StepRecord(0, 1, 0, {"loss": float(rank)})], rank=rank)
    assert RunDir(run).ranks() == [0, 2]
    assert _points(_read(LiveCharts(RunDir(run), rank=2)).window()) == {0: 2.0}
    assert _points(_read(LiveCharts(RunDir(run))).window()) == {0: 0.0}


HOSTILE: Sequence[bytes] = [
    b"\x00\xff" * 3000,
    b"x" * 10_000_000,
    b'{"seg":0,"seq":1e400,"step":"<script>","v":{"loss":{}}}',
    b'{"seg":0,"seq":3,"step":99999999999999999999999,"v":{"loss":1}}',
    b'{"seg":0,"seq":3,"step":5,"v":{"<script>alert(1)</script>":1}}',
    b"[" * 50_000,
    b'{"kind":"event","seg":0,"seq":3,"step":5,"event":"action","data":"none"}',
]


def test_hostile_lines(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", _steps(0, 50))
    for name in ("steps.rank0.jsonl", "events.jsonl"):
        with open(run / name, "ab") as file:
            file.write(b"\n".join(HOSTILE) + b"\n")
    _write(run, _steps(50, 60))
    timeline = _read(LiveCharts(RunDir(run)))
    assert timeline.window().end == 59
    assert timeline.progress == 1.0


def test_a_line_longer_than_any_record_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "LONGEST_LINE", 1 << 19)
    run = _write(tmp_path / "run", _steps(0, 5))
    with open(run / "steps.rank0.jsonl", "ab") as file:
        file.write(b"x" * (1 << 21) + b"\n")
    _write(run, _steps(5, 9))
    assert _read(LiveCharts(RunDir(run))).window().steps == 9


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", _steps(0, 30_000))
    timeline = _read(LiveCharts(RunDir(run), buckets=128))
    whole = timeline._builder.data()
    assert len(whole.series["loss"].points()[0]) <= 256
    assert timeline._recent_rows < live_charts.RECENT_ROWS + 10_000


def test_the_places_of_a_long_file() -> None:
    places = StepIndex(most=8)
    for at in range(1000):
        places.add(at * 10, at * 10 + 10, at * 5, at * 5 + 4, 5)
    for first, last in ((0, 0), (17, 900), (4999, 9000), (0, 4999)):
        found = places.between(first, last)
        assert found[0].first <= first
        assert found[-1].last >= min(last, 4999)
        assert [one.end for one in found[:-1]] == [two.start for two in found[1:]]
    assert len(places.between(0, 5000)) <= 9
    assert sum(part.rows for part in places.between(0, 5000)) == 5000
    assert places.between(6000, 7000) == []


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", _steps(0, 5))
    for name in ("events.jsonl", "steps.rank0.jsonl", "run.json"):
        (run / name).unlink()
        os.mkfifo(run / name)
    timeline = LiveCharts(RunDir(run))
    assert not timeline.read()
    assert timeline.window().series == {}


def test_a_heat_map_of_a_long_run_keeps_its_worst(tmp_path: Path) -> None:
    steps = _steps(0, 12_000)
    steps[7770] = StepRecord(
        0, 7771, 7770, {"loss": 1.0}, {"param/grad_norm": Column([1.0, math.nan, 1.0])}
    )
    timeline = _read(LiveCharts(RunDir(_write(tmp_path / "run", steps))))
    for ends in ((None, None), (7000, 8000), (7770, 7770)):
        picture = timeline.window(*ends).maps["param/grad_norm"]
        assert picture.codes.shape[1] <= CELLS
        cell = (7770 - picture.start) // picture.width
        assert (picture.codes[1] == BAD).nonzero()[0].tolist() == [cell]


def test_a_sample_leaves_out_lines_that_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_charts, "SKETCH_PLACES", 8)
    monkeypatch.setattr(live_charts, "SKETCH_BYTES", 400)
    run = _write(tmp_path / "run", _steps(0, 8000))
    parsed: list[bytes] = []
    one_by_one = step_columns._parse_json
    monkeypatch.setattr(
        step_columns, "_parse_json", lambda line: parsed.append(line) or one_by_one(line)
    )
    data = LiveCharts(RunDir(run)).window(maps=False)
    assert not data.exact
    assert data.end > 7900
    assert data.maps == {}
    assert [line for line in parsed if line.startswith(b"{")] == []  # all were decoded at once


def test_a_thread_can_pause_between_two_parts_of_a_file(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", _steps(0, 100))
    paused: list[int] = []
    with run_files.pausing(lambda: paused.append(1)):
        read_charts(run)
    assert paused
    count = len(paused)
    read_charts(run)
    assert len(paused) == count


def test_the_machines_of_other_ranks(tmp_path: Path) -> None:
    ranks_run(tmp_path / "run", 4)
    data = read_charts(tmp_path / "run")
    assert sorted(data.ranks) == [1, 2, 3]
    assert data.hosts == dict.fromkeys(range(4), "node-0")
    x, y = data.ranks[3]["gpu_busy_share"].points()
    assert x.tolist() == list(range(0, 400, 4))
    assert set(y.tolist()) == {0.45}
    assert "loss" not in data.ranks[3]


def test_the_machines_follow_a_run_that_goes_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    header = Header("headway", world_size=2)
    (run / "run.json").write_text(_line(header))
    back = [(0, 10), (1, 5)]  # ten steps, then a resume from the fifth

    def steps() -> list[Record]:
        found: list[Record] = []
        for segment, first in back:
            for step in range(first if segment else 0, 10):
                values = {"loss": 1.0, "process_cpu_cores": float(segment)}
                found.append(StepRecord(segment, step + 1, step, values))
        return found

    for rank in (0, 1):
        _write(run, steps(), rank=rank)
    timeline = _read(LiveCharts(RunDir(run)))
    data = timeline.window()
    assert data.ranks[1]["process_cpu_cores"].points()[0].tolist() == [*range(15)]
    part = timeline.window(12, 14).ranks[1]["process_cpu_cores"]
    assert part.points()[0].tolist() == [12, 13, 14]
    for rank in (0, 1):
        _write(run, [StepRecord(1, 30, 10, {"loss": 1.0, "process_cpu_cores": 3.0})], rank=rank)
    assert _read(timeline).window().ranks[1]["process_cpu_cores"].points()[1][-1] == 3.0
