"""Healthy loops of odd shapes are left bit for bit as they are, and none is acted on."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from support import odd_loops, odd_loops_data, odd_loops_gradients, odd_loops_weights
from support.paired_trainings import rng_state, seed_everything
from support.trainings import assert_same

from headway import Guard

assert odd_loops_data, odd_loops_gradients  # they add their loops to the same table
assert odd_loops_weights
MIN_LOOPS = 60


def carry_out(name: str, *, guarded: bool) -> tuple[Any, Any, list[Guard]]:
    guards: list[Guard] = []

    def watch(model: Any, optimizer: Any, **options: Any) -> Any:
        if not guarded:
            return odd_loops.Unwatched(model, optimizer)
        guards.append(Guard(model, optimizer, **options))
        return guards[-1]

    seed_everything()
    with warnings.catch_warnings():  # of torch: what it will remove
        warnings.simplefilter("ignore")
        made = odd_loops.LOOPS[name](watch)
        for guard in guards:
            guard.close()
    return made, rng_state(), guards


def test_there_are_enough() -> None:
    assert len(odd_loops.LOOPS) >= MIN_LOOPS


@pytest.mark.nightly
@pytest.mark.parametrize("name", odd_loops.LOOPS)
def test_an_odd_loop(name: str) -> None:
    made, random_numbers, guards = carry_out(name, guarded=True)
    wanted, wanted_numbers, _ = carry_out(name, guarded=False)
    assert_same(_listed(made), _listed(wanted))
    assert random_numbers == wanted_numbers
    assert [guard.actions for guard in guards] == [[] for _ in guards]
    assert not [item for guard in guards for item in guard.findings if item.code == "HD001"]


def _listed(value: Any) -> Any:
    """Tuples as lists, so that everything in them is compared."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
