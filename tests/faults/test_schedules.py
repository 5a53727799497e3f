"""Whatever goes wrong and whenever: weights and moments stay finite, and the run comes home."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fault_injection import (
    AROUND,
    DESTROYING,
    GRACE,
    LOSING_THE_RECORD,
    OPTIONS,
    SKIPPED,
    STEPS,
    Fault,
    Outcome,
    Recipe,
    carry_out,
    clean,
    full_disk_is_real,
)
from support.grids import all_but
from support.long_runs import length
from support.snapshot_folders import complete_snapshots
from support.trainings import assert_same

from headway.core.records import StepRecord
from headway.guard.recovery.snapshot_files import SnapshotFolder
from headway.policy import RollBack
from headway.rundir.run_reader import RunDir
from headway.torch_adapters.nested_state import find_tensors

# When a scaler skips the very first step, the schedule is ahead of the optimizer.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")

RECIPES = {
    "plain": Recipe(),
    "fused, clipped by the guard": Recipe(fused=True, max_norm=1.0),
    "clipped by the user": Recipe(clip=1.0),
    "scaler": Recipe(scaled=True),
    "scaler, fused, clipped by the user": Recipe(scaled=True, fused=True, clip=1.0),
}

NOISE = 3.0
"""What a loss at the end may differ by when a third of the steps were lost."""
SLOW = 900
"""Seconds for one recipe at length, on a machine with other things to do."""
SCAN_AGAIN = 10
"""In a streak of bad steps a bad weight may go unnoticed so long."""

steps = st.integers(0, STEPS - 1)
places = st.integers(0, 99)


@st.composite
def schedules(draw: st.DrawFn) -> list[Fault]:
    """Any number of faults to skip, a few spikes once they can be told, and some of the rest."""
    held = draw(st.dictionaries(steps, st.sampled_from(SKIPPED), max_size=10))
    # One that comes before enough gradients were learned may pass for a gradient like any other.
    for at in draw(st.sets(st.integers(GRACE + len(held), STEPS - 1), max_size=4)):
        held[at] = "spiked gradient"
    found = [Fault(at, kind, draw(places)) for at, kind in sorted(held.items())]
    around = st.sampled_from([*AROUND, "poisoned statistics", "collapsed scale"])
    found += draw(st.lists(st.builds(Fault, steps, around, places), max_size=3))
    late = STEPS - SCAN_AGAIN - 4
    worst = st.builds(Fault, st.integers(1, late), st.sampled_from(DESTROYING), places)
    return found + draw(st.lists(worst, max_size=1) if draw(st.booleans()) else st.just([]))


def some(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.mark.parametrize("recipe", all_but(RECIPES, "plain", "scaler, fused, clipped by the user"))
@some(8)
@given(schedule=schedules())
def test_the_run_comes_home(recipe: str, schedule: list[Fault]) -> None:
    survive(RECIPES[recipe], schedule)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(SLOW)
@pytest.mark.parametrize("recipe", RECIPES)
@some(length(80))
@given(schedule=schedules())
def test_the_run_comes_home_at_length(recipe: str, schedule: list[Fault]) -> None:
    survive(RECIPES[recipe], schedule)


def survive(recipe: Recipe, schedule: list[Fault]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        outcome = carry_out(recipe, schedule, run_dir)
        assert outcome.halted is None
        the_record_is_whole(outcome, run_dir)
        every_snapshot_is_good(run_dir / "snapshots")
    nothing_is_lost(recipe, outcome)


def every_snapshot_is_good(folder: Path) -> None:
    """Whatever is called good is finite, every number of it."""
    for number, step in complete_snapshots(folder):
        state = SnapshotFolder(folder).read(f"{number}-step{step}", "state.pt")
        for path, tensor in find_tensors(state):
            assert not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()), path


def nothing_is_lost(recipe: Recipe, outcome: Outcome) -> None:
    """Finite throughout, as good as a run without faults, and no trace of the steps held back."""
    everything = {**outcome.tensors, **outcome.statistics}
    bad = [name for name, t in everything.items() if not torch.isfinite(t).all()]
    assert not bad
    assert outcome.loss <= expected_loss(recipe, outcome)
    if outcome.met(DESTROYING):
        return
    held = frozenset(fault.step for fault in outcome.met([*SKIPPED, "spiked gradient"]))
    assert_same(clean(recipe, held).tensors, outcome.tensors)
    if not recipe.scaled:  # a scaler deals with bad gradients by itself, and with those alone
        assert outcome.guard is not None
        assert {action.step for action in outcome.guard.actions} == held
        if not outcome.met(["poisoned statistics"]):  # put back to what they were a while ago
            assert_same(clean(recipe, held).statistics, outcome.statistics)


def expected_loss(recipe: Recipe, outcome: Outcome) -> float:
    """That of a run without faults; of one that learned at all, where most steps went to faults."""
    assert outcome.guard is not None
    back = [action for action in outcome.guard.actions if isinstance(action, RollBack)]
    held = {action.step for action in outcome.guard.actions}
    held |= {fault.step for fault in outcome.met([*SKIPPED, "spiked gradient"])}
    lost = len(held) + len(back) * OPTIONS["snapshots"].every
    if lost <= STEPS // 3:
        return NOISE * clean(recipe).loss
    return clean(recipe, frozenset(range(STEPS))).loss / NOISE


def the_record_is_whole(outcome: Outcome, run_dir: Path) -> None:
    assert outcome.guard is not None
    if outcome.met(LOSING_THE_RECORD):
        assert outcome.guard.run_dir is None, "and the training did not mind"
        return
    read = RunDir(run_dir)
    numbers = [record.step for record in read.records() if isinstance(record, StepRecord)]
    assert read.torn == 0
    if not outcome.met(DESTROYING):
        assert numbers == list(range(STEPS))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_clean_run_learns(recipe: str) -> None:
    """Else its loss would be no measure."""
    untrained = clean(RECIPES[recipe], frozenset(range(STEPS))).loss
    assert clean(RECIPES[recipe]).loss < untrained / NOISE / 10
    assert carry_out(RECIPES[recipe], [], None).loss == clean(RECIPES[recipe]).loss


@pytest.mark.parametrize("kind", [*SKIPPED, *DESTROYING, *LOSING_THE_RECORD])
def test_every_fault_is_one(kind: str) -> None:
    """Without a guard, or without its being held, it would be felt."""
    if kind == "full disk":
        assert full_disk_is_real()
    with tempfile.TemporaryDirectory() as folder:
        outcome = carry_out(Recipe(), [Fault(30, kind)], Path(folder) / "run")
    assert outcome.guard is not None
    if kind in LOSING_THE_RECORD:
        assert outcome.guard.run_dir is None
    else:
        assert 30 <= outcome.guard.actions[0].step <= 31


def test_an_infinite_second_moment_is_mended() -> None:
    """It only stops its weight: no step goes bad, and the next snapshot alone can tell."""
    outcome = carry_out(Recipe(), [Fault(20, "inf second moment")], None)
    assert all(torch.isfinite(tensor).all() for tensor in outcome.tensors.values())
