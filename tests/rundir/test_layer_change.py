"""Which layer changed first: found where one did, and not where none did."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from headway.rundir.heat_map import HeatMap, HeatSampler, find_first_change

BAD_AT = 600
Factor = Callable[[int, int], float]


def picture(factor: Factor, *, every: int = 10, noise: float = 0.3) -> HeatMap:
    """Four rows with noise; `factor(row, step)` multiplies a norm, and step 600 is NaN."""
    chance = random.Random(1)
    sampler = HeatSampler()
    sampler.axis(["a", "b", "c", "d"])
    for step in range(0, BAD_AT + 1, every):
        level = [(row + 1) * math.exp(chance.gauss(0, noise)) for row in range(4)]
        values = [value * factor(row, step) for row, value in enumerate(level)]
        sampler.add(step, [math.nan] * 4 if step == BAD_AT else values, None)
    found = sampler.picture()
    assert found is not None
    return found


def test_the_row_that_grew_first_is_named() -> None:
    def factor(row: int, step: int) -> float:
        begun = {1: 480, 2: 540}.get(row, BAD_AT + 1)
        return 100.0 if step >= begun else 1.0

    found = find_first_change(picture(factor), BAD_AT)
    assert found is not None
    assert (found.row, abs(found.x - 480) <= 4) == ("b", True)
    assert 30 < found.factor < 300
    assert found.together == 0


def test_rows_that_changed_at_once_are_counted() -> None:
    found = find_first_change(picture(lambda row, step: 1e3 if step >= 500 else 1.0), BAD_AT)
    assert found is not None
    assert found.together == 3


def test_a_row_that_fell_counts() -> None:
    found = find_first_change(
        picture(lambda row, step: 1e-4 if row == 3 and step >= 560 else 1.0), BAD_AT
    )
    assert found is not None
    assert found.row == "d"
    assert found.factor < 1e-2


def test_noise_a_slow_trend_and_a_spike_that_is_over_are_no_change() -> None:
    assert find_first_change(picture(lambda row, step: 1.0), BAD_AT) is None
    assert find_first_change(picture(lambda row, step: math.exp(-step / 200)), BAD_AT) is None
    over = picture(lambda row, step: 1000.0 if row == 0 and step == 400 else 1.0)
    assert find_first_change(over, BAD_AT) is None


def test_too_little_is_known() -> None:
    assert find_first_change(picture(lambda row, step: 1.0), 40) is None
    few = picture(lambda row, step: 100.0 if step > 300 else 1.0, every=150)
    assert find_first_change(few, BAD_AT) is None
