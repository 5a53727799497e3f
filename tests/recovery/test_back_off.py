"""Backing off: a factor on top of the user's schedule, re-warmed, then removed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.paired_trainings import steps_of
from support.strategies import lightly
from support.trainings import batches, make_net, squared_error

from headway import Guard, Policy
from headway.guard.brake.adaptive_clipper import RateFactor
from headway.policy import BackOff, Rung


def factors(rate: RateFactor, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """What the optimizer's rate is multiplied by at each of the next steps."""
    seen = []
    for _ in range(steps):
        rate.apply()
        seen.append(float(optimizer.param_groups[0]["lr"]))
        rate.remove(stepped=True)
        assert float(optimizer.param_groups[0]["lr"]) == 1.0
    return seen


def sgd(lr: float | torch.Tensor = 1.0) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def test_low_for_a_while_then_linearly_back_then_gone() -> None:
    optimizer = sgd()
    rate = RateFactor(optimizer, hold=3, rewarm=4)
    assert factors(rate, optimizer, 2) == [1.0, 1.0]
    rate.back_off(0.5)
    expected = [0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0]
    assert factors(rate, optimizer, 9) == pytest.approx(expected)
    assert rate.value == 1.0


def test_a_second_one_starts_from_where_the_rate_is() -> None:
    optimizer = sgd()
    rate = RateFactor(optimizer, hold=2, rewarm=1)
    rate.back_off(0.5)
    rate.back_off(0.5)
    assert factors(rate, optimizer, 4) == pytest.approx([0.25, 0.25, 0.625, 1.0])


def test_a_rate_kept_in_a_tensor_is_changed_in_place_and_given_back() -> None:
    lr = torch.tensor(1.0)
    optimizer = sgd(lr)
    rate = RateFactor(optimizer, hold=1, rewarm=0)
    rate.back_off(0.5)
    assert factors(rate, optimizer, 2) == [0.5, 1.0]
    assert optimizer.param_groups[0]["lr"] is lr


def test_a_held_step_does_not_use_it_up() -> None:
    rate = RateFactor(sgd(), hold=2, rewarm=2)
    rate.back_off(0.5)
    for _ in range(10):
        rate.apply()
        rate.remove(stepped=False)
    assert rate.value == 0.5


@lightly
@given(
    st.integers(0, 5),
    st.integers(0, 5),
    st.lists(st.sampled_from(["step", "back-off", "resume"]), max_size=30),
)
def test_the_factor_stays_within_bounds_and_survives_a_resume(
    hold: int, rewarm: int, story: list[str]
) -> None:
    optimizer = sgd()
    rate = RateFactor(optimizer, hold, rewarm)
    for event in story:
        before = rate.value
        if event == "back-off":
            rate.back_off(0.5)
            assert rate.value <= before
        elif event == "resume":
            fresh = RateFactor(optimizer, hold, rewarm)
            fresh.load_state_dict(rate.state_dict())
            rate = fresh
            assert rate.value == before
        else:
            assert factors(rate, optimizer, 1) == [before]
            assert rate.value >= before
        assert 0.0 < rate.value <= 1.0
    factors(rate, optimizer, hold + rewarm)
    assert rate.value == 1.0


def test_in_a_training_the_schedule_is_the_users_and_the_record_tells_the_truth(
    tmp_path: Path,
) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    policy = Policy(
        skips_in_a_row=2, back_offs=1, back_off_factor=0.1, back_off_steps=3, rewarm_steps=2
    )
    scheduled, factor = [], []
    with Guard(model, optimizer, scheduler, run_dir=tmp_path, policy=policy) as guard:
        for number, batch in enumerate(guard(batches(20))):
            loss = squared_error(model, batch) * (math.nan if number in (5, 6, 7) else 1.0)
            loss.backward()
            scheduled.append(optimizer.param_groups[0]["lr"])
            factor.append(guard.rate_factor)
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] == scheduled[-1]
            optimizer.zero_grad()
            scheduler.step()
    assert scheduled == pytest.approx([0.01 * 0.99**number for number in range(20)])
    skips = [Rung.SKIP, Rung.SKIP, Rung.BACK_OFF]
    assert [action.rung for action in guard.actions] == skips
    (backed,) = (action for action in guard.actions if isinstance(action, BackOff))
    assert backed.to_dict()["factor"] == 0.1
    low = [0.1, 0.1, 0.1, 0.4, 0.7]
    assert factor == pytest.approx([1.0] * 8 + low + [1.0] * 7)
    recorded = [step.values["lr"] for step in steps_of(tmp_path)]
    expected = [rate * by for rate, by in zip(scheduled, factor, strict=True)]
    assert recorded == pytest.approx(expected, rel=1e-5)
