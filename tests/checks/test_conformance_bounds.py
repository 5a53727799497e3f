"""A check's bound, against the same rule written down slowly and plainly."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import registry
from headway.core.bound import LARGEST, Bound, History
from headway.core.state import decode, encode

BOUNDS = {
    code: bound for code in registry.modules() if (bound := registry.get(code).bound) is not None
}


class PlainHistory:
    """What `History` promises, with everything computed anew from the plain list of values."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.learned: list[float] = []
        self.row: list[float] = []

    def limit(self) -> float:
        recent = self.learned[-self.bound.window :]
        if len(recent) < self.bound.grace:
            return LARGEST
        middle = math.log(lower_median(recent))
        spread = 1.4826 * lower_median([abs(math.log(value) - middle) for value in recent])
        reach = max(self.bound.sigmas * spread, math.log(self.bound.min_ratio))
        level = max(middle, math.log(lower_median(recent[-self.bound.recent :])))
        return min(float(np.float32(min(np.exp(min(level + reach, 700)), LARGEST))), LARGEST)

    def admit(self, value: float, *, outside: bool) -> None:
        if outside:
            self.row += [value] if math.isfinite(value) else []
            if len(self.row) < self.bound.patience:
                return
            self.learned = []
        else:
            self.row = [value]
        self.learned += [seen for seen in self.row if math.isfinite(seen) and seen > 0]
        self.row = []


def lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


@st.composite
def _runs(draw: st.DrawFn) -> list[float]:
    """A run: stretches at a level with noise, spikes, and numbers that are none."""
    stretch = st.tuples(
        st.floats(-20, 20), st.sampled_from([0.0, 0.1, 1.0, 3.0]), st.integers(1, 80)
    )
    odd = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e38, 1e300, 1e-300])
    noise_of = random.Random(draw(st.integers(0, 2**32)))
    values: list[float] = []
    for level, noise, count in draw(st.lists(stretch, min_size=1, max_size=6)):
        values += [math.exp(level + noise * noise_of.gauss(0, 1)) for _ in range(count)]
        values += draw(st.lists(odd, max_size=3))
    return values


@pytest.mark.parametrize("code", BOUNDS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(values=_runs())
def test_history_keeps_the_rule(code: str, values: list[float]) -> None:
    history, plain = History(BOUNDS[code]), PlainHistory(BOUNDS[code])
    for number, value in enumerate(values):
        if number == len(values) // 2:  # a resume changes nothing
            history = decode(json.loads(json.dumps(encode(history), allow_nan=False)))
        limit = plain.limit()
        outside = history.out_of_bounds(value)
        assert math.isclose(history.limit(), limit, rel_tol=1e-5) or limit > 3e38
        # Rounding may decide either way exactly at the limit, nowhere else.
        if not math.isclose(value, limit, rel_tol=1e-5):
            assert outside == (not value <= limit), (number, value, limit)
        history.admit(value, outside=outside)
        plain.admit(value, outside=outside)
