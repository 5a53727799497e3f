"""What the spike rule remembers of a run: one bad number neither blinds nor jams it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import torch
from support.paired_trainings import all_finite, steps_of
from support.trainings import Batch, batches, make_net, squared_error
from torch import Tensor, nn

from headway import Guard
from headway.core.bound import Bound
from headway.policy import Rung

PATIENCE = Bound("grad_norm").patience
GRACE = Bound("grad_norm").grace


def run(
    steps: int, factors: Mapping[int, float], run_dir: Path | None = None, lr: float = 1e-5
) -> Guard:
    """A training in which the loss of some steps is multiplied by a factor."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with Guard(model, optimizer, run_dir=run_dir) as guard:
        for number, batch in enumerate(guard(batches(steps, size=64))):
            loss = squared_error(model, batch) * factors.get(number, 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all_finite(model.state_dict())
    return guard


def skips(guard: Guard) -> list[int]:
    assert {action.rung for action in guard.actions} <= {Rung.SKIP}
    return [action.step for action in guard.actions]


def test_one_nan_in_600_healthy_steps_is_one_skip(tmp_path: Path) -> None:
    guard = run(600, {200: math.nan}, tmp_path)
    assert skips(guard) == [200]
    steps = steps_of(tmp_path)
    assert [step.step for step in steps] == list(range(600))
    assert [step.step for step in steps if step.held] == [200]
    assert math.isnan(steps[200].values["grad_norm"])


def test_the_rule_still_sees_a_spike_after_a_nan_and_lets_the_rest_pass(tmp_path: Path) -> None:
    guard = run(400, {100: math.nan, 101: math.inf, 250: 1e4, 300: 3.0}, tmp_path)
    assert skips(guard) == [100, 101, 250]
    norms = [step.values["grad_norm"] for step in steps_of(tmp_path) if not step.held]
    spike = steps_of(tmp_path)[250].values
    assert max(norms) < spike["grad_norm_limit"] < spike["grad_norm"]
    assert spike["grad_norm_limit"] < 100 * median(norms)


def test_many_nans_do_not_widen_the_limit() -> None:
    nans = dict.fromkeys([*range(40, 50), *range(60, 75)], math.nan)
    assert skips(run(120, {**nans, 90: 1e4})) == [*nans, 90]


def test_spikes_are_not_learned() -> None:
    """Single spikes, however many, stay spikes."""
    spikes = dict.fromkeys(range(30, 120, 3), 1e4)
    assert skips(run(120, spikes)) == list(spikes)


def test_a_new_level_is_learned_after_so_much_patience() -> None:
    """The level is 50 times the old one for good: skipping for ever would be the end of the run."""
    shifted = dict.fromkeys(range(60, 200), 50.0)
    assert skips(run(200, shifted)) == list(range(60, 60 + PATIENCE))


def test_a_spike_above_the_new_level_is_seen() -> None:
    shifted = dict.fromkeys(range(60, 200), 50.0)
    late = 60 + PATIENCE + GRACE
    assert skips(run(200, {**shifted, late: 1e6})) == [*range(60, 60 + PATIENCE), late]


def test_nans_between_the_steps_of_a_new_level_do_not_hinder_learning_it() -> None:
    shifted = dict.fromkeys(range(60, 120), 50.0) | {63: math.nan, 66: math.nan}
    assert skips(run(120, shifted)) == list(range(60, 60 + PATIENCE + 2))


def test_nothing_but_nan_is_held_in_the_grace_period() -> None:
    assert skips(run(GRACE + 1, {3: 1e4, 7: math.nan})) == [7]


def test_a_loss_that_is_nan_while_the_gradients_are_finite_is_held() -> None:
    """As in `loss + torch.tensor(nan)`: the gradients do not know of it."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(number: int, batch: Batch) -> Tensor:
        return squared_error(model, batch) + (math.nan if number == 5 else 0.0)

    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(10))):
            before = model.weight.detach().clone()
            loss_of(number, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(before, model.weight) == (number == 5)
    assert skips(guard) == [5]
