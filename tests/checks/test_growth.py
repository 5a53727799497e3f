"""Growth: the watch survives a resume. What it finds is told by the pages of its checks."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly

from headway.checks.growth import GrowthRule, GrowthWatch
from headway.core.state import decode, encode

RULE = GrowthRule(grace=3, horizon=30)


@lightly
@given(st.integers(0, 150), st.sampled_from([0.0, 0.02, -0.02]), st.integers(0, 200))
def test_a_watch_goes_on_from_its_state_as_if_never_interrupted(
    cut: int, slope: float, turn: int
) -> None:
    run = [100 * (1 + slope * min(step, turn)) for step in range(160)]
    whole, interrupted = GrowthWatch(32), GrowthWatch(32)
    for step, value in enumerate(run):
        if step == cut:
            state = json.loads(json.dumps(encode(interrupted), allow_nan=False))
            interrupted = decode(state)
        assert interrupted.admit(step, value, RULE) == whole.admit(step, value, RULE)
    if slope > 0 and turn >= 160:
        assert whole.reset_below is not None, "steady growth is told"
    if slope <= 0:
        assert whole.reset_below is None
