"""Remedies on the set of origins: traced, tried, and then done by hand as their texts say."""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from explain.origin_set import SCENARIOS, Case, Scenario
from explain.origin_set.traced import traced_origins

from headway.explain.counterfactual import judge_trial, select_remedies
from headway.explain.explanation import Origin, Trial
from headway.explain.failing_step import FailingStep, Outcome
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.drop_samples import DropSamples, batch_size
from headway.explain.remedies.one_line_remedies import Bf16, GuardInput
from headway.torch_adapters import rng

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")

OF_THE_STATE = {"poisoned-weight", "poisoned-buffer", "carried-state"}
"""No way of running the step mends these: they get advice."""
HOPELESS = {
    "forbidden-word": "the mask forbids what the target demands",
    "growing-state": "the model itself is unstable, for every sample",
    "prototype-of-zeros": "a weight whose direction is lost",
    "half-behind-a-mask": "its origin is not found",
    "silence": "its origin is taken for a carried state",
}
GRAPHS = {"lonely-node"}
"""One sample's tensors point into another's: rows cannot simply be cut out."""
PRECISIONS = (None, torch.bfloat16, torch.float16)


def scene_of(case: Case) -> FailingStep:
    names = {id(parameter): name for name, parameter in case.model.named_parameters()}
    return FailingStep([case.model], [case.optimizer], [case.bad], names, scaler=case.scaler)


def outcome_of(case: Case, scene: FailingStep, remedy: StepRemedy | None = None) -> Outcome:
    outcome, drawn = Outcome(), rng.capture()
    buffers = [(buffer, buffer.clone()) for buffer in case.model.buffers()]
    case.model.zero_grad(set_to_none=True)
    batches = scene.batches if remedy is None else remedy.batches(scene)
    try:
        with nullcontext() if remedy is None else remedy.applied(scene):
            for batch in batches:
                loss, _ = case.forward(batch)
                case.scaled(loss).backward()
                outcome.losses.append(float(loss.detach()))
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
    for name, parameter in case.model.named_parameters():
        if parameter.grad is not None:
            outcome.norms[name] = float(parameter.grad.double().norm()) / (case.scale or 1.0)
    rng.restore(drawn)
    for buffer, value in buffers:
        buffer.copy_(value)
    return outcome


def edited_scenario(scenario: Scenario, origin: Origin, written: str) -> Scenario:
    """The scenario after somebody typed what the remedy says, over the guilty line."""
    assert origin.place is not None
    path = Path(origin.place.file)
    lines = path.read_text("utf-8").splitlines()
    theirs = lines[origin.place.line - 1]
    lines[origin.place.line - 1] = theirs[: len(theirs) - len(theirs.lstrip())] + written
    module = types.ModuleType(f"{path.stem}_by_hand")
    sys.modules[module.__name__] = module
    exec(compile("\n".join(lines), str(path), "exec"), module.__dict__)
    return next(each for each in module.SCENARIOS if each.name == scenario.name)


CASES = [
    pytest.param(
        scenario,
        precision,
        id=f"{scenario.name}-{str(precision).removeprefix('torch.')}",
        # One precision of each scenario in turn; the others at night.
        marks=() if (at + number) % len(PRECISIONS) == 0 else pytest.mark.nightly,
    )
    for number, scenario in enumerate(SCENARIOS)
    for at, precision in enumerate(PRECISIONS)
    if str(precision).removeprefix("torch.") not in scenario.excluded
]


@pytest.mark.parametrize(("scenario", "precision"), CASES)
def test_a_remedy_cures_and_so_does_doing_what_it_says(
    scenario: Scenario, precision: torch.dtype | None
) -> None:
    case = scenario.case("cpu", precision)
    origins = traced_origins(case)
    if scenario.name in HOPELESS:
        pytest.skip(HOPELESS[scenario.name])
    origin = origins[0]
    scene = scene_of(case)
    healthy = [outcome_of(case, _with(scene, batch)) for batch in case.healthy]
    trials: dict[str, tuple[Trial, StepRemedy, Outcome]] = {}
    for remedy in select_remedies(origin, None, scene, "deterministic"):
        outcome = Outcome() if remedy.why_not else outcome_of(case, scene, remedy)
        trials[remedy.key] = judge_trial(remedy, outcome, None), remedy, outcome
    assert [outcome_of(case, _with(scene, batch)) for batch in case.healthy] == healthy

    cured = [trial for trial, _, _ in trials.values() if trial.tried == "cured"]
    if scenario.kind in OF_THE_STATE:
        assert trials
        assert not cured
        return
    assert cured, [trial for trial, _, _ in trials.values()]
    for key, (trial, remedy, outcome) in trials.items():
        if trial.tried == "not tried" or key == "fp32-island":
            continue
        hand = _by_hand(scenario, precision, origin, remedy)
        if hand is None:
            continue
        edited = outcome_of(hand, scene_of(hand))
        assert edited.finite == (trial.tried == "cured"), trial
        if key != "drop-samples":  # fewer samples have another mean
            same = pytest.approx(outcome.losses, rel=1e-3, abs=1e-6, nan_ok=True)
            assert edited.losses == same, trial
    if "guard-input" in trials and (origin.kind, precision) != ("exp-overflow", torch.float16):
        assert trials["guard-input"][0].tried == "cured", trials["guard-input"][0]


def _by_hand(
    scenario: Scenario, precision: torch.dtype | None, origin: Origin, remedy: StepRemedy
) -> Case | None:
    """The case after the user did it; None where that needs more than a line."""
    case = scenario.case("cpu", precision)
    if isinstance(remedy, GuardInput):
        if remedy.edited is None:
            return None
        assert f"`{remedy.edited}`" in remedy.text
        return edited_scenario(scenario, origin, remedy.edited).case("cpu", precision)
    if isinstance(remedy, DropSamples):
        size = batch_size(case.bad)
        kept = [row for row in range(size or 0) if row not in remedy.rows[0]]
        rows = {k: v[kept] if v.ndim and len(v) == size else v for k, v in case.bad.items()}
        return None if scenario.name in GRAPHS else replace(case, bad=rows)
    if isinstance(remedy, Bf16):
        return replace(case, autocast=torch.bfloat16)
    return replace(case, autocast=None) if remedy.keepable else None


def _with(scene: FailingStep, batch: Any) -> FailingStep:
    return FailingStep(scene.models, scene.optimizers, [batch], scene.names, scaler=scene.scaler)


@pytest.mark.slow
def test_most_lines_can_be_rewritten() -> None:
    """A remedy that names the very edit is worth more than one that describes it."""
    found = []
    for scenario in SCENARIOS:
        if scenario.name in HOPELESS:
            continue
        case = scenario.case()
        origins = traced_origins(case)
        for remedy in select_remedies(origins[0], None, scene_of(case), "deterministic"):
            if isinstance(remedy, GuardInput):
                outcome_of(case, scene_of(case), remedy)
                found.append(remedy.edited is not None)
    assert sum(found) >= 0.9 * len(found)
