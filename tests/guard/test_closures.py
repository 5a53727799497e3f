"""Optimizers that call backward themselves, from inside `step(closure)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import all_finite, steps_of
from support.trainings import (
    Batch,
    assert_same,
    batches,
    make_net,
    skip_or_halt,
    squared_error,
    state_of,
)
from torch import Tensor

from headway import Guard, TrainingHalted

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
    "LBFGS wolfe": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
}
BAD = 7


class Closure:
    """A closure that counts its calls, and returns NaN at chosen ones."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, batch: Batch, bad_call: int = 0):
        self.model, self.optimizer, self.batch, self.bad_call = model, optimizer, batch, bad_call
        self.calls = 0
        self.losses: list[float] = []

    def __call__(self) -> Tensor:
        self.calls += 1
        self.optimizer.zero_grad()
        loss = squared_error(self.model, self.batch)
        if self.calls == self.bad_call:
            loss = loss * math.nan
        loss.backward()
        self.losses.append(loss.item())
        return loss


def make(name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = make_net()
    return model, OPTIMIZERS[name](model.parameters())


def number_of(loss: Any) -> float:
    return float(loss.detach())


@pytest.mark.parametrize("by_name", [False, True], ids=["step(closure)", "step(closure=…)"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_healthy_run_is_left_as_it_is(name: str, by_name: bool, tmp_path: Path) -> None:
    """The same weights, the same losses returned, and the closure called as often."""
    outcomes: list[Any] = []
    for guarded in (True, False):
        model, optimizer = make(name)
        guard = Guard(model, optimizer, run_dir=tmp_path) if guarded else None
        told = []
        for batch in batches(12):
            closure = Closure(model, optimizer, batch)
            loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            told.append([number_of(loss), closure.calls])
        if guard:
            guard.close()
            assert guard.actions == []
            assert [step.values["loss"] for step in steps_of(tmp_path)] == [
                loss for loss, _ in told
            ]
        outcomes.append([state_of(model, optimizer), told])
    assert_same(outcomes[0], outcomes[1])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_first_evaluation_is_held(name: str) -> None:
    model, optimizer = make(name)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(12))):
            before = state_of(model, optimizer)
            closure = Closure(model, optimizer, batch, bad_call=1 if number == BAD else 0)
            loss = optimizer.step(closure)
            if number == BAD:
                assert_same(before, state_of(model, optimizer))
                assert math.isnan(number_of(loss))
                assert closure.calls == 1
        assert [action.step for action in guard.actions] == [BAD]


@pytest.mark.parametrize("name", ["LBFGS", "LBFGS wolfe"])
@pytest.mark.parametrize("bad_call", [2, 3, 4, 5])
def test_a_line_search_that_turns_nan_leaves_no_trace(name: str, bad_call: int) -> None:
    """The first evaluation was fine, a later one was not: as if the step had never been tried."""
    (model, optimizer), (clean, clean_optimizer) = make(name), make(name)
    held = []
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(12))):
            before = state_of(model, optimizer)
            bad = number == BAD
            optimizer.step(Closure(model, optimizer, batch, bad_call=bad_call if bad else 0))
            assert all_finite(state_of(model, optimizer))
            if bad:
                held.append(not differs(before, state_of(model, optimizer)))
            else:
                clean_optimizer.step(Closure(clean, clean_optimizer, batch))
    if held == [True]:
        assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [BAD]
    else:  # the search itself stopped short of the bad point
        assert guard.actions == []


def differs(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        assert_same(one, other)
    except AssertionError:
        return True
    return False


def test_a_line_search_that_is_nan_for_ever_halts() -> None:
    model, optimizer = make("LBFGS")

    def train(guard: Guard) -> None:
        for batch in guard(batches(20)):
            optimizer.step(Closure(model, optimizer, batch, bad_call=2))

    with (
        Guard(model, optimizer, policy=skip_or_halt(skips_in_a_row=3)) as guard,
        pytest.raises(TrainingHalted, match="step 3"),
    ):
        train(guard)


def test_a_closure_that_does_not_compute_gradients_is_the_users_business() -> None:
    """`step(closure)` where the closure only returns a loss, as some write for logging."""
    outcomes = []
    for guarded in (True, False):
        model, optimizer = make("SGD")
        guard = Guard(model, optimizer) if guarded else None
        for batch in batches(5):
            loss = squared_error(model, batch)
            loss.backward()
            optimizer.step(lambda loss=loss: loss)
            optimizer.zero_grad()
        if guard:
            guard.close()
        outcomes.append(state_of(model, optimizer))
    assert_same(outcomes[0], outcomes[1])


def test_an_exception_in_a_closure_is_the_users_own() -> None:
    model, optimizer = make("LBFGS")

    def closure() -> Tensor:
        raise ZeroDivisionError("the user's mistake")

    with Guard(model, optimizer) as guard:
        with pytest.raises(ZeroDivisionError, match="the user's mistake"):
            optimizer.step(closure)
        optimizer.step(Closure(model, optimizer, batches(1)[0]))
        assert guard.actions == []
