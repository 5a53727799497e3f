"""Healthy trainings that look ill: no warning, no action, the same bits as without a guard."""

from __future__ import annotations

import pytest
from lookalikes import TRAININGS, Run
from watched import loud

from holdfast import Policy

POLICIES = {"spike that recovers": Policy(hold_spikes=False)}
"""A spike is held back, and told, by default: this one is watched as a log would show it."""


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
@pytest.mark.parametrize("name", TRAININGS)
def test_healthy_lookalikes_are_quiet(name: str, seed: int) -> None:
    alone, guarded = Run(seed, watched=False), None
    TRAININGS[name](alone)
    guarded = Run(seed, watched=True, policy=POLICIES.get(name))
    TRAININGS[name](guarded)
    assert guarded.guard is not None
    guarded.guard.close()
    assert loud(guarded.guard) == []
    assert guarded.guard.actions == []
    assert guarded.losses == alone.losses
    assert len(guarded.losses) >= 40
