"""A long series keeps its spikes and its non-finite values, however it arrived."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

from headway.rundir import downsample as module
from headway.rundir.downsample import Downsampler, downsample

values = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300)
strides = st.integers(min_value=1, max_value=1000)
buckets = st.integers(min_value=2, max_value=40)


@thoroughly
@given(values, strides, buckets)
def test_the_extremes_stay_at_their_own_steps(y: list[float], by: int, most: int) -> None:
    x = [by * at for at in range(len(y))]
    kept_x, kept_y, _ = downsample(x, y, most)
    finite = {step: value for step, value in zip(x, y, strict=True) if math.isfinite(value)}
    assert all(finite[step] == value for step, value in zip(kept_x, kept_y, strict=True))
    if finite:
        assert max(kept_y) == max(finite.values())
        assert min(kept_y) == min(finite.values())
    assert kept_x == sorted(kept_x)


@thoroughly
@given(values, strides, buckets)
def test_every_value_lies_between_those_kept_of_its_bucket(
    y: list[float], by: int, most: int
) -> None:
    series = Downsampler(most)
    for at, value in enumerate(y):
        series.add(by * at, value)
    kept_x, kept_y = series.points()
    spans: dict[int, list[float]] = {}
    for step, value in zip(kept_x.tolist(), kept_y.tolist(), strict=True):
        spans.setdefault(step // series.width, []).append(value)
    for at, value in enumerate(y):
        if math.isfinite(value):
            span = spans[by * at // series.width]
            assert min(span) <= value <= max(span)


@thoroughly
@given(values, strides, buckets)
def test_no_nonfinite_value_is_lost(y: list[float], by: int, most: int) -> None:
    x = [by * at for at in range(len(y))]
    _, _, gaps = downsample(x, y, most)
    for kind, is_one in (
        ("NaN", math.isnan),
        ("Infinity", lambda value: value == math.inf),
        ("-Infinity", lambda value: value == -math.inf),
    ):
        ours = [gap for gap in gaps if gap.kind == kind]
        steps = [step for step, value in zip(x, y, strict=True) if is_one(value)]
        assert sum(gap.count for gap in ours) == len(steps)
        if steps:
            assert min(gap.first for gap in ours) == steps[0]
            assert max(gap.last for gap in ours) == steps[-1]


@thoroughly
@given(values, buckets)
def test_there_are_never_more_than_were_asked_for(y: list[float], most: int) -> None:
    kept_x, _, gaps = downsample(range(len(y)), y, most)
    assert len(kept_x) <= 2 * most
    assert len(gaps) <= 3 * most


@thoroughly
@given(values, buckets, st.integers(min_value=1, max_value=50))
def test_pieces_come_to_the_same_as_the_whole(y: list[float], most: int, at_once: int) -> None:
    whole = downsample(range(len(y)), y, most)
    series = Downsampler(most)
    for at, value in enumerate(y):
        series.add(at, value)
        if at % at_once == 0:
            series.points()  # folds what has come so far
    kept_x, kept_y = series.points()
    assert (kept_x.tolist(), kept_y.tolist(), series.gaps()) == whole


def test_one_bad_step_in_many_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POINTS_PER_FOLD", 1000)
    y = [1.0] * 100_000
    y[61_803] = math.nan
    y[31_415] = 7.0
    kept_x, kept_y, gaps = downsample(range(len(y)), y, 100)
    assert (31_415, 7.0) in zip(kept_x, kept_y, strict=True)
    assert [(gap.kind, gap.first, gap.last, gap.count) for gap in gaps] == [
        ("NaN", 61_803, 61_803, 1)
    ]
    assert len(kept_x) <= 200


def test_a_series_of_nothing_is_empty() -> None:
    assert downsample([], []) == ([], [], [])


def test_one_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 buckets"):
        Downsampler(1)


@thoroughly
@given(values, st.integers(min_value=1, max_value=9), st.integers(min_value=1, max_value=20))
def test_the_means_are_those_of_the_finite_values(y: list[float], at_once: int, most: int) -> None:
    series = Downsampler(4)
    for begin in range(0, len(y), at_once):
        part = y[begin : begin + at_once]
        series.extend(np.arange(begin, begin + len(part)), np.asarray(part))
    x, means = series.means(most)
    assert len(x) <= most
    if series.width == 1:
        assert not len(x)  # every point is drawn as it is
        return
    width = series.width
    while len({at // width for at, value in enumerate(y) if math.isfinite(value)}) > most:
        width *= 2
    for middle, found in zip(x.tolist(), means.tolist(), strict=True):
        first = middle - width // 2
        inside = [value for value in y[first : first + width] if math.isfinite(value)]
        size = max(map(abs, inside))
        mean = math.fsum(value / len(inside) for value in inside)
        assert found == pytest.approx(mean, rel=1e-9, abs=size * 1e-9)
