"""Layer × step in bounded memory: the largest value of a cell stays, and what was not finite."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

from headway.rundir.heat_map import ABSENT, BAD, ZERO, HeatSampler, measured_columns


def test_small_values_are_themselves() -> None:
    heat = HeatSampler()
    heat.axis(["a", "b", "c"])
    heat.add(5, [1.0, 0.0, math.nan], None)
    heat.add(6, [100.0], [1])
    picture = heat.picture()
    assert picture is not None
    assert list(picture.rows) == ["a", "b", "c"]
    assert (picture.start, picture.width) == (5, 1)
    assert picture.codes.tolist() == [[0, ABSENT], [ZERO, 200], [BAD, ABSENT]]


def test_nothing_gives_no_picture() -> None:
    heat = HeatSampler()
    heat.axis(["a"])
    assert heat.picture() is None


@thoroughly
@given(
    st.lists(st.floats(min_value=1e-30, max_value=1e30), min_size=1, max_size=200),
    st.integers(min_value=2, max_value=9),
    st.integers(min_value=1, max_value=77),
)
def test_the_largest_of_a_cell_stays(y: list[float], cells: int, by: int) -> None:
    heat = HeatSampler(cells=cells)
    heat.axis(["a"])
    for at, value in enumerate(y):
        heat.add(by * at, [value], None)
    picture = heat.picture()
    assert picture is not None
    assert picture.codes.shape[1] <= cells
    for cell in range(picture.codes.shape[1]):
        inside = [value for at, value in enumerate(y) if by * at // picture.width == cell]
        code = picture.codes[0, cell]
        assert code == (round(100 * math.log10(max(inside))) if inside else ABSENT)


@thoroughly
@given(st.integers(min_value=0, max_value=199), st.integers(min_value=0, max_value=29))
def test_one_bad_cell_is_never_folded_away(step: int, row: int) -> None:
    heat = HeatSampler(cells=8)
    heat.axis([f"layer {number}" for number in range(30)])
    for at in range(200):
        values = [0.5] * 30
        if at == step:
            values[row] = math.inf
        heat.add(at, values, None)
    picture = heat.picture(rows=10)
    assert picture is not None
    assert picture.codes.shape == (10, -(-200 // picture.width))
    assert np.argwhere(picture.codes == BAD).tolist() == [[row // 3, step // picture.width]]


def test_names_may_change_on_the_way() -> None:
    heat = HeatSampler()
    heat.axis(["a", "b"])
    heat.add(0, [1.0, 1.0], None)
    heat.axis(["b", "c"])
    heat.add(1, [10.0, 10.0], None)
    picture = heat.picture()
    assert picture is not None
    assert list(picture.rows) == ["a", "b", "c"]
    assert picture.codes.tolist() == [[0, ABSENT], [0, 100], [ABSENT, 100]]


def test_too_many_names_are_counted() -> None:
    heat = HeatSampler(names=2)
    heat.axis(["a", "b", "c"])
    heat.add(0, [1.0, 2.0, 3.0], None)
    picture = heat.picture()
    assert picture is not None
    assert (len(picture.rows), picture.left_out) == (2, 1)


def test_a_column_that_does_not_fit_does_no_harm() -> None:
    heat = HeatSampler()
    heat.axis(["a"])
    heat.add(0, [1.0, 2.0], [0, 99])
    heat.add(1, [], None)
    heat.add(2, [3.0], [10**400])
    picture = heat.picture()
    assert picture is not None
    assert picture.codes.tolist() == [[0]]


def test_columns_begin_at_measurements() -> None:
    sampler = HeatSampler()
    sampler.axis(["a", "b"])
    for x in (0, 10, 20, 21, 30):
        sampler.add(x, [1.0, 10.0], None)
    columns = measured_columns(sampler.picture())
    assert columns.starts.tolist() == columns.ends.tolist() == [0, 10, 20, 21, 30]
    assert columns.codes.tolist() == [[0] * 5, [100] * 5]


def test_tensors_that_take_turns_share_a_column() -> None:
    sampler = HeatSampler()
    sampler.axis(["a", "b", "c", "d"])
    for turn in range(64):
        sampler.add(10 * turn, [float(turn + 1)], [turn % 4])
    columns = measured_columns(sampler.picture())
    assert (columns.codes != ABSENT).all()
    assert 8 <= columns.codes.shape[1] <= 16
    assert columns.ends[-1] >= 630


def test_the_share_of_values_that_are_not_finite() -> None:
    sampler = HeatSampler(cells=2)
    sampler.axis(["a", "b"])
    for x in range(4):
        sampler.add(x, [math.nan if x == 1 else 1.0, 1.0], None)
    shares = sampler.nonfinite_shares()
    assert shares is not None
    assert shares.codes.tolist() == [[round(100 * math.log10(0.5)), ZERO], [ZERO, ZERO]]
    quiet = HeatSampler()
    quiet.axis(["a"])
    quiet.add(0, [1.0], None)
    assert quiet.nonfinite_shares() is None
