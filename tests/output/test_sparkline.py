"""A curve in one line."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headway.output.display_text import sparkline


def test_a_falling_loss_that_turns_nan() -> None:
    values = [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, math.nan, math.nan]
    curve, mark = sparkline(range(10), values, width=40, onset=8)
    assert curve == "█▇▆▅▄▃▂▁××"
    assert mark == "        ▲"


def test_a_poor_terminal() -> None:
    curve, mark = sparkline(range(3), [1.0, 2.0, math.inf], width=40, onset=2, plain=True)
    assert (curve + mark).isascii()
    assert curve == "_@x"


def test_many_points_share_columns_and_no_bad_one_is_lost() -> None:
    values = [1.0] * 5000
    values[1234] = math.nan
    curve, _ = sparkline(range(5000), values, width=50)
    assert len(curve) == 50
    assert curve.count("×") == 1


def test_nothing_to_draw() -> None:
    assert sparkline([], [], width=40) == ("", "")
    assert sparkline([1], [1.0], width=0) == ("", "")
    assert sparkline([5, 6], [1.0, 2.0], width=9, onset=99)[1] == ""


@given(st.lists(st.floats(), max_size=60), st.integers(0, 80), st.integers(-5, 70))
def test_any_numbers(values: list[float], width: int, onset: int) -> None:
    curve, mark = sparkline(range(len(values)), values, width=width, onset=onset)
    assert len(curve) <= max(width, 0)
    assert len(mark) <= max(len(curve), 1)
