"""Windows: the run's own past, which no single bad number can spoil."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import floats, same, thoroughly

from headway.core.state import decode, encode
from headway.core.window import MAD_TO_SIGMA, DownsampledSeries, Window

sizes = st.integers(1, 9)
series = st.lists(floats | st.sampled_from([0.0, -0.0, 1.0, 1.0, 2.0]), max_size=40)


def lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2] if values else math.nan


def through_json(value: object) -> object:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


def filled(size: int, values: list[float]) -> Window:
    window = Window(size)
    for value in values:
        window.push(value)
    return window


@thoroughly
@given(sizes, series)
def test_a_window_is_the_last_finite_values_and_their_lower_median_and_spread(
    size: int, values: list[float]
) -> None:
    window = Window(size)
    kept: list[float] = []
    for value in values:
        assert window.push(value) is math.isfinite(value)
        if math.isfinite(value):
            kept = [*kept, value][-size:]
        middle = lower_median(kept)
        spread = MAD_TO_SIGMA * lower_median([abs(item - middle) for item in kept])
        assert window.values == kept
        assert len(window) == len(kept)
        assert window.full is (len(kept) == size)
        assert same(window.median, middle)
        for last in (1, 3, size + 1):
            assert same(window.median_of_last(last), lower_median(kept[-last:]))
        assert same(window.low, min(kept, default=math.nan))
        assert same(window.high, max(kept, default=math.nan))
        assert same(window.sigma(log=False), spread)
        assert same(window.median_of_last(3), lower_median(kept[-3:]))


@thoroughly
@given(sizes, st.lists(st.floats(min_value=1e-300, max_value=1e300), min_size=1, max_size=30))
def test_the_spread_of_logarithms_is_the_spread_of_the_logarithms(
    size: int, values: list[float]
) -> None:
    logs = [math.log(value) for value in values[-size:]]
    middle = lower_median(logs)
    spread = MAD_TO_SIGMA * lower_median([abs(item - middle) for item in logs])
    assert filled(size, values).sigma(log=True) == pytest.approx(spread, abs=1e-9)


@thoroughly
@given(sizes, series, st.floats(0, 1))
def test_a_quantile_is_a_value_of_the_window_and_the_extremes_are_its_ends(
    size: int, values: list[float], share: float
) -> None:
    window = filled(size, values)
    if not len(window):
        assert math.isnan(window.quantile(share))
        return
    assert window.quantile(share) in window.values
    assert window.quantile(0) == window.low
    assert window.quantile(1) == window.high


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_value_changes_nothing(bad: float) -> None:
    window = filled(3, [1.0, 2.0, 3.0])
    assert window.push(bad) is False
    assert window.values == [1.0, 2.0, 3.0]


def test_an_outlier_hardly_moves_the_median() -> None:
    assert filled(9, [1.0, 1.1, 0.9, 1.0, 1e30, 1.05]).median == 1.0


def test_clearing_forgets_everything() -> None:
    window = filled(3, [1.0, 2.0])
    window.clear()
    assert len(window) == 0
    assert math.isnan(window.median)
    window.push(5.0)
    assert window.values == [5.0]


@thoroughly
@given(sizes, series, series)
def test_a_window_goes_on_from_its_state_as_if_never_interrupted(
    size: int, before: list[float], after: list[float]
) -> None:
    uninterrupted = filled(size, before + after)
    resumed = through_json(filled(size, before))
    assert isinstance(resumed, Window)
    for value in after:
        resumed.push(value)
    assert resumed.size == size
    assert resumed.values == uninterrupted.values
    assert same(resumed.median, uninterrupted.median)
    assert same(resumed.sigma(log=False), uninterrupted.sigma(log=False))


@thoroughly
@given(st.integers(2, 12), st.integers(0, 300))
def test_a_thinned_run_is_bounded_in_order_and_covers_first_to_last(size: int, count: int) -> None:
    thinned = DownsampledSeries(size)
    for at in range(count):
        thinned.push(at, 2.0 * at)
        assert len(thinned) <= size
    places = [at for at, _ in thinned.points]
    assert places == [stride * thinned.stride for stride in range(len(places))], "evenly spread"
    assert all(value == 2.0 * at for at, value in thinned.points)
    if count:
        assert places[0] == 0
        assert count - 1 - places[-1] < thinned.stride, "nothing newer was left out for good"
    if count >= size:
        assert len(places) >= size // 2, "a long run keeps at least half of its points"


def test_a_thinned_run_leaves_nonfinite_values_out() -> None:
    thinned = DownsampledSeries(8)
    assert thinned.push(0, math.nan) is False
    assert thinned.push(1, math.inf) is False
    assert thinned.push(2, 1.0) is True
    assert thinned.points == [(2, 1.0)]


def test_a_cleared_thinned_run_begins_anew() -> None:
    thinned = DownsampledSeries(4)
    for at in range(50):
        thinned.push(at, 1.0)
    thinned.clear()
    for at in (7, 8):
        thinned.push(at, 1.0)
    assert thinned.points == [(7, 1.0), (8, 1.0)]


@thoroughly
@given(st.integers(2, 9), st.integers(0, 100), st.integers(0, 100))
def test_a_thinned_run_goes_on_from_its_state_as_if_never_interrupted(
    size: int, before: int, after: int
) -> None:
    uninterrupted, interrupted = DownsampledSeries(size), DownsampledSeries(size)
    for at in range(before):
        uninterrupted.push(at, at / 2)
        interrupted.push(at, at / 2)
    resumed = through_json(interrupted)
    assert isinstance(resumed, DownsampledSeries)
    for at in range(before, before + after):
        assert resumed.push(at, at / 2) is uninterrupted.push(at, at / 2)
    assert resumed.points == uninterrupted.points
    assert (resumed.size, resumed.stride) == (uninterrupted.size, uninterrupted.stride)
