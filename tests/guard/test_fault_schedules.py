"""Any schedule of faults, any optimizer: no trace of a held step, and never a non-finite state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.long_runs import length
from support.paired_trainings import all_finite
from support.trainings import Batch, assert_same, batches, make_net, squared_error, state_of

from headway import Guard, Policy

STEPS = 60
GRACE = 24
"""Before this step a spike may pass for a gradient like any other."""

(GOOD,) = batches(1, size=32)
"""The other micro-batch of a window."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-3),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=0.01),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=2),
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with a batch or its loss."""

    kind: str

    def batch(self, batch: Batch) -> Batch:
        x, y = batch
        if self.kind == "nan input":
            x = x.clone()
            x[1, 2] = math.nan
        elif self.kind == "inf input":
            x = x.clone()
            x[0, 0] = -math.inf
        elif self.kind == "nan target":
            y = y * math.nan
        return x, y

    @property
    def factor(self) -> float:
        return {"nan loss": math.nan, "inf loss": math.inf, "spike": 1e8}.get(self.kind, 1.0)


HARD = ("nan loss", "inf loss", "nan input", "inf input", "nan target")


@st.composite
def schedules(draw: st.DrawFn) -> dict[int, Fault]:
    """Faults at some steps; spikes after the grace period, and never enough to be a new level."""
    found = draw(
        st.dictionaries(st.integers(0, STEPS - 1), st.sampled_from(HARD).map(Fault), max_size=12)
    )
    for at in draw(st.sets(st.integers(GRACE + 12, STEPS - 1), max_size=5)):
        found[at] = Fault("spike")
    return found


def take_step(model: Any, optimizer: torch.optim.Optimizer, batch: Batch, factor: float) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = squared_error(model, batch) * factor
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def some(examples: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=slow
    )


faulty_runs = given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    schedule=schedules(),
    accumulate=st.sampled_from([1, 1, 2]),
)


@some(5)
@faulty_runs
def test_no_schedule_of_faults_leaves_a_trace(
    name: str, schedule: dict[int, Fault], accumulate: int
) -> None:
    follow_with_a_twin(name, schedule, accumulate)


@pytest.mark.slow
@pytest.mark.long
@some(length(100))
@faulty_runs
def test_no_schedule_of_faults_leaves_a_trace_at_length(
    name: str, schedule: dict[int, Fault], accumulate: int
) -> None:
    follow_with_a_twin(name, schedule, accumulate)


def follow_with_a_twin(name: str, schedule: dict[int, Fault], accumulate: int) -> None:
    """In step with a net that never sees the faulty batches."""
    if name == "LBFGS":
        accumulate = 1
    (model, clean) = make_net(), make_net()
    optimizer = OPTIMIZERS[name](model.parameters())
    clean_optimizer = OPTIMIZERS[name](clean.parameters())
    with Guard(model, optimizer, policy=Policy(halt=False)) as guard:
        for number, batch in enumerate(guard(batches(STEPS, size=32))):
            fault = schedule.get(number)
            before = state_of(model, optimizer) if fault else {}
            batch_now, factor = (fault.batch(batch), fault.factor) if fault else (batch, 1.0)
            step(model, optimizer, batch_now, factor, accumulate)
            state = state_of(model, optimizer)
            assert all_finite(state), f"step {number}, {fault}"
            if fault:
                assert_same(before, state, f"held step {number}, {fault}")
            else:
                step(clean, clean_optimizer, batch, 1.0, accumulate)
                assert_same(state_of(clean, clean_optimizer), state, f"step {number}")
        assert [action.step for action in guard.actions] == sorted(schedule)


def step(
    model: Any, optimizer: torch.optim.Optimizer, batch: Batch, factor: float, accumulate: int
) -> None:
    """One optimizer step; under accumulation the fault is in the last micro-batch only."""
    if accumulate == 1:
        take_step(model, optimizer, batch, factor)
        return
    optimizer.zero_grad()
    squared_error(model, GOOD).backward()
    (squared_error(model, batch) * factor).backward()
    optimizer.step()
