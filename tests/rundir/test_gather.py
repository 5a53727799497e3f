"""A stream becomes series, pictures and marks; steps that repeat do not break the axis."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis import given
from support.literate_cases import read_records
from support.strategies import lightly, streams

from headway.core.records import Column, EventRecord, Header, Record, StepRecord
from headway.rundir.chart_data import MAX_MARKS, MAX_SERIES, ChartData, build_charts


def _points(data: ChartData, name: str) -> list[tuple[int, float]]:
    x, y = data.series[name].points()
    return list(zip(x.tolist(), y.tolist(), strict=True))


def test_series_by_signal() -> None:
    data = build_charts(read_records(["loss: 2.0, nan, 1.0", "lr: 0.1*3", "step_time_s: 1.0*3"]))
    assert [value for _, value in _points(data, "loss")] == [2.0, 1.0]
    assert [gap.kind for gap in data.series["loss"].gaps()] == ["NaN"]
    assert "lr" in data.series
    assert "step_time_s" not in data.series


def test_the_norm_after_clipping_comes_from_the_factor() -> None:
    data = build_charts([StepRecord(0, 1, 0, {"grad_norm": 8.0, "clip_coef": 0.125})])
    assert _points(data, "clipped_grad_norm") == [(0, 1.0)]


def test_a_log_may_tell_it_itself() -> None:
    values = {"grad_norm": 8.0, "clip_coef": 0.125, "clipped_grad_norm": 2.0}
    assert _points(build_charts([StepRecord(0, 1, 0, values)]), "clipped_grad_norm") == [(0, 2.0)]


def test_steps_that_repeat_go_on_along_the_axis() -> None:
    steps = [StepRecord(0, at, at, {"loss": 1.0}) for at in range(10)]
    again = [StepRecord(1, 20 + at, 5 + at, {"loss": 2.0}) for at in range(3)]
    data = build_charts([*steps, *again])
    assert [x for x, _ in _points(data, "loss")] == list(range(13))
    assert [(jump.x, jump.offset) for jump in data.jumps] == [(10, 5)]
    assert data.place((0, 5), 5) == 5
    assert data.place((1, 20), 5) == 10


def test_one_rank_tells_it_for_all() -> None:
    stream: list[Record] = [Header("headway", world_size=2)]
    for rank in (0, 1):
        stream.append(StepRecord(0, 1, 0, {"loss": float(rank)}, rank=rank))
        stream.append(EventRecord(0, 2, 0, "action", {"action": "skip"}, rank=rank))
    data = build_charts(stream)
    assert _points(data, "loss") == [(0, 0.0)]
    assert len(data.marks) == 1


def test_layers() -> None:
    header = Header("headway", axes={"param": ["a", "b"]})
    step = StepRecord(
        0,
        1,
        3,
        columns={
            "param/grad_norm": Column([1.0, math.inf]),
            "param/weight_norm": Column([1]),
            "param/grad_zero_share": Column([0.5]),
        },
    )
    data = build_charts([header, step])
    assert list(data.maps) == ["param/grad_norm", "param/weight_norm", "param/nonfinite_share"]
    assert list(data.maps["param/grad_norm"].rows) == ["a", "b"]


def test_what_happened() -> None:
    data = build_charts(
        [
            StepRecord(0, 1, 7, {"loss": math.nan}, held=True),
            EventRecord(0, 2, 7, "action", {"action": "skip", "reason": "a NaN"}),
            EventRecord(0, 3, 7, "incident", {"headline": "why"}),
            EventRecord(0, 4, 7, "end", {}),
        ]
    )
    assert [(mark.x, mark.label) for mark in data.marks] == [(7, "skip: a NaN")]
    assert [event.data["headline"] for event in data.incidents] == ["why"]
    assert data.held.points()[0].tolist() == [7]


def test_memory_is_bounded() -> None:
    def stream() -> Iterator[Record]:
        for at in range(3000):
            values = {f"loss/part {at}": 1.0, "loss": 1.0}
            yield StepRecord(0, 2 * at, at, values)
            yield EventRecord(0, 2 * at + 1, at, "note", {"text": "x" * 10_000})

    data = build_charts(stream())
    assert len(data.series) <= MAX_SERIES + 1
    assert "loss" in data.series
    assert data.series_left_out > 0
    assert len(data.marks) == 2 * MAX_MARKS
    assert data.marks_left_out == 3000 - 2 * MAX_MARKS
    assert max(len(mark.label) for mark in data.marks) <= 300


@lightly
@given(streams())
def test_odd_records_do_no_harm(stream: list[Record]) -> None:
    build_charts(stream)


def test_a_step_beyond_counting_is_left_out() -> None:
    data = build_charts(
        [StepRecord(0, 1, 10**30, {"loss": 1.0}), StepRecord(0, 2, 4, {"loss": 1.0})]
    )
    assert [x for x, _ in _points(data, "loss")] == [4]
