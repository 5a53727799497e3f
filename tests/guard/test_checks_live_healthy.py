"""Healthy trainings that look ill: no warning, no action, the same bits as without a guard."""

from __future__ import annotations

import pytest
import torch
from support.grids import every_nth
from support.guarded_trainings import loud
from support.healthy_lookalikes import TRAININGS, Run

from headway import Policy

POLICIES = {"spike that recovers": Policy(hold_spikes=False)}
"""A spike is held back, and told, by default: this one is watched as a log would show it."""


def made(name: str, seed: int, *, watched: bool, device: str = "cpu") -> Run:
    options = {"policy": POLICIES.get(name)} if watched else {}
    run = Run(seed, watched=watched, device=device, **options)
    run.make(TRAININGS[name])
    return run


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
@pytest.mark.parametrize("name", every_nth(TRAININGS, 3, pytest.mark.slow))
def test_healthy_lookalikes_are_quiet(name: str, seed: int) -> None:
    run = made(name, seed, watched=True)
    assert run.guard is not None
    assert loud(run.guard) == []
    assert run.guard.actions == []
    assert run.losses == made(name, seed, watched=False).losses
    assert len(run.losses) >= 40


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", TRAININGS)
def test_healthy_lookalikes_are_quiet_on_cuda(name: str) -> None:
    """The same without the comparison: some sums on the device have no fixed order."""
    run = made(name, 0, watched=True, device="cuda")
    assert run.guard is not None
    assert loud(run.guard) == []
    assert run.guard.actions == []
