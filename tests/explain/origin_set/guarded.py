"""A case as a training under a guard: what the user gets to hear of its bad step."""

from __future__ import annotations

from explain.origin_set.scenario import Case, Scenario

from headway import Guard, Policy, Settings
from headway.explain.explanation import Explanation

POISONED = ("poisoned-weight", "poisoned-buffer")
"""A state that came bad is found before any step is run again: HD301 and HD302 tell it."""

SEARCHES = ("loss-scale",)
"""Gradients that overflow by the loss scale alone: the scaler's own search, and no incident."""


def for_a_guard(scenario: Scenario) -> bool:
    """Whether a guard would run its bad step again."""
    return scenario.kind not in POISONED and scenario.name not in SEARCHES


def guarded(case: Case) -> Explanation:
    """Train on the healthy batches, then on the bad one; why it went bad."""
    policy = Policy(hold_spikes=False, roll_backs=0, back_offs=0, halt=False)
    optimizer, scaler = case.optimizer, case.scaler
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # the weights are those that the scenario was made with
    with Guard(case.model, optimizer, scaler=scaler, policy=policy, settings=Settings()) as guard:
        for batch in guard([*case.healthy, case.bad]):
            loss, parts = case.forward(batch)
            guard.backward(loss, **parts)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
        (explanation,) = guard.explanations
    return explanation
