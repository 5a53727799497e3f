"""A healthy run is left bit for bit as it is: losses, weights, moments, buffers, random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import (
    KINDS,
    OPTIMIZERS,
    PRECISIONS,
    STEPS,
    Outcome,
    Recipe,
    carry_out,
    steps_of,
    unguarded,
)
from support.trainings import assert_same


def assert_same_outcome(one: Outcome, other: Outcome) -> None:
    assert_same(one.losses, other.losses, "losses")
    assert_same(one.state, other.state)
    assert one.rng == other.rng
    assert one.scale == other.scale


def assert_guard_changes_nothing(recipe: Recipe, **options: Any) -> Outcome:
    """Runs the recipe with a guard and without; the guarded outcome."""
    guarded = carry_out(recipe, guarded=True, **options)
    assert_same_outcome(guarded, unguarded(recipe))
    assert guarded.guard is not None
    assert guarded.guard.actions == []
    return guarded


@pytest.mark.parametrize("optimizer", ["Adam", "Adam fused"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_precisions(kind: str, precision: str, optimizer: str) -> None:
    assert_guard_changes_nothing(Recipe(kind, precision, optimizer))


@pytest.mark.parametrize("optimizer", ["Adam", "Adam fused"])
@pytest.mark.parametrize("kind", KINDS)
def test_first_steps_that_the_scaler_skips(kind: str, optimizer: str, tmp_path: Path) -> None:
    recipe = Recipe(kind, "float16", optimizer, init_scale=2.0**24)
    guarded = assert_guard_changes_nothing(recipe, run_dir=tmp_path)
    skipped = [bool(step.values.get("scaler_skipped")) for step in steps_of(tmp_path)]
    assert skipped[:3] == [True, True, True]
    assert skipped.count(True) < STEPS / 2
    assert guarded.scale == 2.0 ** (24 - skipped.count(True))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_users_own_clipping(kind: str, precision: str) -> None:
    assert_guard_changes_nothing(Recipe(kind, precision, clip=0.05))


def test_a_clipping_that_never_clips() -> None:
    assert_guard_changes_nothing(Recipe("cnn", clip=1e6))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_accumulation(precision: str, optimizer: str) -> None:
    assert_guard_changes_nothing(Recipe("cnn", precision, optimizer, accumulate=4))


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_of_rates(kind: str, tmp_path: Path) -> None:
    assert_guard_changes_nothing(Recipe(kind, scheduled=True), run_dir=tmp_path)
    rates = [step.values["lr"] for step in steps_of(tmp_path)]
    assert len(rates) == STEPS
    assert rates == sorted(set(rates), reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_together(kind: str) -> None:
    recipe = Recipe(kind, "bfloat16", "Adam fused", clip=0.1, accumulate=4, scheduled=True)
    assert_guard_changes_nothing(recipe)


@pytest.mark.parametrize(
    "recipe",
    [
        *(Recipe(kind) for kind in KINDS),
        *(Recipe(optimizer=name) for name in ("Adam fused", "SGD")),
        *(Recipe(precision=name) for name in ("bfloat16", "float16")),
        Recipe(precision="float16", optimizer="Adam fused"),
        Recipe("cnn", "float16", "Adam fused", accumulate=4),
    ],
    ids=lambda recipe: f"{recipe.kind} {recipe.precision} {recipe.optimizer}",
)
def test_max_norm_clips_as_clip_grad_norm_does(recipe: Recipe) -> None:
    by_guard = carry_out(recipe, guarded=True, max_norm=0.05)
    assert_same_outcome(by_guard, unguarded(recipe.but(clip=0.05)))
    assert not torch.equal(by_guard.losses[-1], unguarded(recipe).losses[-1]), "it did clip"


def test_max_norm_out_of_reach_changes_nothing() -> None:
    assert_guard_changes_nothing(Recipe("cnn"), max_norm=1e6)


def test_the_guard_draws_no_random_numbers() -> None:
    """The dropout of the transformer is the witness, and here the generators themselves."""
    recipe = Recipe("transformer")
    guarded = carry_out(recipe, guarded=True)
    assert guarded.rng == unguarded(recipe).rng
    assert guarded.rng != carry_out(recipe, guarded=True, steps=STEPS - 1).rng
