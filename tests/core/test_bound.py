"""Bounds: the limit a run sets for itself."""

from __future__ import annotations

import json
import math
import random
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.strategies import floats, thoroughly

from headway.core.bound import LARGEST, Bound, History, as_float32
from headway.core.state import decode, encode

bounds = st.builds(
    Bound,
    signal=st.just("grad_norm"),
    sigmas=st.sampled_from([0.5, 3.0, 8.0]),
    min_ratio=st.sampled_from([1.0, 1.5, 10.0]),
    window=st.integers(1, 8),
    grace=st.integers(1, 4),
    patience=st.integers(1, 4),
    recent=st.integers(1, 8),
)
near_each_other = st.floats(min_value=0.5, max_value=20.0)
values = floats | near_each_other | st.sampled_from([0.0, -1.0, 1e-320, 1e-40, 3e38, 1e39, 1e308])
QUICK = Bound("grad_norm", window=16, grace=4, patience=3)


def lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


class Reference:
    """The rule as one would say it, with nothing remembered but the values."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.learned: list[float] = []
        self.outside: list[float] = []

    def limit(self) -> float:
        if len(self.learned) < self.bound.grace:
            return LARGEST
        logs = [math.log(value) for value in self.learned]
        middle = lower_median(logs)
        sigma = 1.4826 * lower_median([abs(value - middle) for value in logs])
        level = max(middle, lower_median(logs[-self.bound.recent :]))
        exponent = level + max(self.bound.sigmas * sigma, math.log(self.bound.min_ratio))
        return min(math.exp(min(exponent, 700.0)), LARGEST)

    def admit(self, value: float, *, outside: bool) -> None:
        if outside:
            self.outside += [value] if math.isfinite(value) else []
            if len(self.outside) < self.bound.patience:
                return
            self.learned, new = [], self.outside
        else:
            new = [value]
        self.outside = []
        for item in new:
            if item > 0 and math.isfinite(item):
                self.learned = [*self.learned, item][-self.bound.window :]


def clearly_apart(value: float, limit: float) -> bool:
    """Whether rounding the limit to float32 cannot change the answer."""
    return not math.isclose(value, limit, rel_tol=1e-5, abs_tol=1e-37)


def judge(history: History, value: float) -> bool:
    outside = history.out_of_bounds(value)
    history.admit(value, outside=outside)
    return outside


def a_healthy_run(count: int) -> list[float]:
    rng = random.Random(0)
    return [math.exp(rng.gauss(0.0, 0.2)) for _ in range(count)]


@thoroughly
@given(bounds, st.lists(values, max_size=40))
def test_limit_and_verdict_agree_with_the_plain_rule(bound: Bound, run: list[float]) -> None:
    history, reference = History(bound), Reference(bound)
    for value in run:
        limit = reference.limit()
        assert history.limit() == pytest.approx(limit, rel=1e-5, abs=1e-37)
        outside = history.out_of_bounds(value)
        if math.isnan(value):
            assert outside
        elif clearly_apart(value, limit):
            assert outside is not (value <= limit)
        history.admit(value, outside=outside)
        reference.admit(value, outside=outside)
        assert history.window.values == reference.learned
        assert history.outside == reference.outside


@thoroughly
@given(bounds, st.lists(values, max_size=40), st.data())
@example(Bound("x", grace=1), [1.0000001192092896, 10.000001192092896], None)
@example(Bound("x", grace=1), [1e38, 5e38], None)
@example(Bound("x", grace=1), [1e-50, 1e-50], None)
def test_the_shortcut_never_says_anything_but_the_limit(
    bound: Bound, run: list[float], data: st.DataObject | None
) -> None:
    history = History(bound)
    for value in run:
        shown = history.out_of_bounds(value)  # asked first: the limit is not worked out yet
        assert shown is (not value <= history.limit())
        assert history.out_of_bounds(value) is shown, "and asking again changes nothing"
        # What was enforced may have been another limit than this one.
        history.admit(value, outside=shown if data is None else data.draw(st.booleans()))


@given(
    st.floats(min_value=1e-30, max_value=1e30),
    st.floats(min_value=-2e-7, max_value=2e-7),
)
@thoroughly
def test_the_shortcut_agrees_with_the_limit_to_the_last_bit(level: float, off: float) -> None:
    history = History(Bound("x", grace=1))
    history.admit(level, outside=False)
    value = level * history.bound.min_ratio * (1 + off)
    assert history.out_of_bounds(value) is (not value <= history.limit())


@thoroughly
@given(bounds, st.lists(values, max_size=40))
def test_a_limit_is_a_positive_finite_float32(bound: Bound, run: list[float]) -> None:
    history = History(bound)
    for value in run:
        judge(history, value)
        limit = history.limit()
        assert 0 < limit <= LARGEST
        assert struct.unpack("f", struct.pack("f", limit))[0] == limit


def test_only_nan_or_inf_is_out_of_bounds_in_the_grace_period() -> None:
    history = History(QUICK)
    assert history.limit() == LARGEST
    for value in (1.0, 1e30, 1e-30):
        assert judge(history, value) is False
    assert judge(history, math.nan) is True
    assert judge(history, math.inf) is True
    assert judge(history, -math.inf) is False, "a fall is not this rule's business"
    assert len(history.window) == 3


def test_one_nan_among_600_values_is_one_alarm_and_blinds_nothing() -> None:
    history = History(Bound("grad_norm"))
    run = a_healthy_run(600)
    run[300] = math.nan
    assert [at for at, value in enumerate(run) if judge(history, value)] == [300]
    assert judge(history, 1000.0) is True, "a later spike is still seen"
    assert judge(history, 1.0) is False


def test_a_spike_is_not_learned_so_the_next_one_is_seen_too() -> None:
    history = History(Bound("grad_norm"))
    for value in a_healthy_run(100):
        judge(history, value)
    before = history.limit()
    assert judge(history, 500.0) is True
    assert history.limit() == before
    assert judge(history, 1.0) is False
    assert judge(history, 500.0) is True


def test_a_rise_by_less_than_min_ratio_is_never_out_of_bounds() -> None:
    history = History(QUICK)
    for _ in range(16):
        judge(history, 1.0)
    assert history.limit() == 10.0
    assert judge(history, 9.99) is False
    assert judge(history, 10.01) is True


def test_a_climb_of_many_steps_is_no_spike_and_a_leap_out_of_it_is() -> None:
    history = History(Bound("grad_norm"))
    for _ in range(100):
        judge(history, 1.0)
    climb = [1.0 * 1.1**step for step in range(50)]
    assert not any(judge(history, value) for value in climb)
    assert judge(history, 30 * climb[-1]) is True


def test_a_climb_is_judged_by_where_it_has_come_to_not_by_where_it_was() -> None:
    history = History(Bound("grad_norm", sigmas=0.0, recent=4))
    for value in [1.0] * 100 + [9.0] * 2:
        judge(history, value)
    assert history.limit() == 10.0
    judge(history, 9.0)
    assert history.limit() == 90.0, "most of the last four are at the new level"
    for value in [0.1] * 4:
        judge(history, value)
    assert history.limit() == 10.0, "a fall does not narrow it at once"


def test_patience_takes_so_many_in_a_row_for_the_new_level() -> None:
    history = History(QUICK)
    for _ in range(16):
        judge(history, 1.0)
    assert [judge(history, 100.0) for _ in range(6)] == [True, True, True, False, False, False]
    assert history.window.low == 100.0, "the old level is forgotten"
    assert judge(history, 1e5) is True, "and the new one is judged by"


def test_a_good_value_starts_the_count_of_patience_again() -> None:
    history = History(QUICK)
    for _ in range(16):
        judge(history, 1.0)
    run = [100.0, 100.0, 1.0, 100.0, 100.0, 1.0]
    assert [judge(history, value) for value in run] == [True, True, False, True, True, False]
    assert history.window.high == 1.0


def test_nonfinite_values_are_never_taken_for_a_new_level() -> None:
    history = History(QUICK)
    for _ in range(16):
        judge(history, 1.0)
    assert all(judge(history, math.nan) for _ in range(50))
    assert history.window.median == 1.0
    assert history.limit() == 10.0


@thoroughly
@given(bounds, st.lists(st.tuples(values, st.booleans()), max_size=30))
def test_what_is_kept_stays_bounded(bound: Bound, run: list[tuple[float, bool]]) -> None:
    history = History(bound)
    for value, outside in run:
        history.admit(value, outside=outside)
        assert len(history.window) <= bound.window
        assert len(history.outside) < bound.patience
        assert all(math.isfinite(item) and item > 0 for item in history.window.values)


@thoroughly
@given(bounds, st.lists(st.tuples(values, st.booleans()), max_size=30), st.lists(values))
@example(Bound("x", grace=1, patience=1), [(1.0, False), (0.0, True)], [50.0])
def test_a_history_goes_on_from_its_state_as_if_never_interrupted(
    bound: Bound, before: list[tuple[float, bool]], after: list[float]
) -> None:
    uninterrupted = History(bound)
    for value, outside in before:
        uninterrupted.limit()
        uninterrupted.admit(value, outside=outside)
    resumed = decode(json.loads(json.dumps(encode(uninterrupted), allow_nan=False)))
    assert isinstance(resumed, History)
    assert resumed.bound == bound
    for value in after:
        assert resumed.limit() == uninterrupted.limit()
        assert judge(resumed, value) is judge(uninterrupted, value)
    assert resumed.window.values == uninterrupted.window.values
    assert resumed.outside == uninterrupted.outside


@pytest.mark.parametrize(
    ("value", "expected"), [(0.1, 0.10000000149011612), (1e39, LARGEST), (LARGEST, LARGEST)]
)
def test_as_float32_rounds_as_a_device_does(value: float, expected: float) -> None:
    assert as_float32(value) == expected
