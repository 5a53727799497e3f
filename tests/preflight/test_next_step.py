"""The line of a bad number in loops that draw their own batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway.config import Settings
from headway.guard.script.launcher import ScriptLauncher
from headway.policy import Policy
from headway.preflight.runner import run_check
from headway.report import Report


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


class Net(nn.Module):
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        h = self.head(torch.tanh(self.inner(x)))
        return torch.log(h + self.shift)  # the line


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4)
    return x, x.sum(dim=1, keepdim=True)


def loop_for(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x, y = batch()
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_while(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    done = 0
    source = iter([batch() for _ in range(steps)])
    while done < steps:
        x, y = next(source)
        optimizer.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        done += 1


def loop_closure(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x, y = batch()

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


LOOPS = [loop_for, loop_while, loop_closure]


def train(loop: Callable[..., None], shift: float, steps: int = 3) -> nn.Module:
    torch.manual_seed(0)
    net = Net(shift)
    loop(net, torch.optim.SGD(net.parameters(), lr=1e-2), steps)
    return net


def line_of(report: Report) -> tuple[Any, Any]:
    where = report.causes[0].root.where
    return where.line, where.op


@pytest.mark.parametrize("loop", LOOPS)
def test_the_line_is_named(loop: Callable[..., None]) -> None:
    report = run_check(lambda: train(loop, -2.0), max_steps=3).report
    source = Net.forward.__code__.co_firstlineno + 2
    assert line_of(report) == (source, "log")


def test_data_that_came_bad_is_blamed() -> None:
    def work() -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        data = torch.randn(64, 4)
        data[::3, 1] = float("nan")
        for _ in range(3):
            x = data[torch.randint(0, 64, (16,))]
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()

    report = run_check(work, max_steps=3).report
    assert report.causes[0].code == "HD501"
    assert report.causes[0].root.where.line == work.__code__.co_firstlineno + 7


@pytest.mark.parametrize("loop", LOOPS)
def test_the_run_stays_as_it_is(loop: Callable[..., None]) -> None:
    """One step is bad, the next is watched and fine."""
    plain, seen = [], []

    def work(kept: list[Any]) -> None:
        torch.manual_seed(0)
        net = Net(5.0)
        seen_steps = 0

        def poison(module: nn.Module, args: Any) -> Any:
            nonlocal seen_steps
            seen_steps += 1
            return (args[0] * float("nan"),) if seen_steps == 2 else None

        net.register_forward_pre_hook(poison)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)

        def hold(inner: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if seen_steps == 2:  # what the guard does by itself
                for p in net.parameters():
                    p.grad = None

        optimizer.register_step_pre_hook(hold) if kept is plain and loop is not loop_closure else 0
        loop(net, optimizer, 4)
        kept.append(copy.deepcopy(net.state_dict()))
        kept.append(torch.get_rng_state())

    if loop is loop_closure:
        pytest.skip("held inside of the step: no plain run to compare with")
    work(plain)
    run_check(lambda: work(seen), max_steps=None)
    assert torch.equal(plain[1], seen[1])
    for name, value in plain[0].items():
        assert torch.equal(value, seen[0][name])


def test_torch_is_as_before() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    run_check(lambda: train(loop_for, -2.0, 2), max_steps=None)
    assert not _get_current_dispatch_mode_stack()


class Framework:
    """Draws the batches and steps by a closure, each in a function of its own."""

    def fit(self, rows: Tensor) -> None:
        self.net = Net(shift=-5.0)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-2)
        for (self.x,) in DataLoader(TensorDataset(rows), 8):
            self.optimizer.step(self.closure)

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.net(self.x).mean()
        loss.backward()
        return loss


def test_a_line_that_was_told_is_not_said_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptLauncher(settings=Settings(), policy=Policy(replay_gap=0)):
        Framework().fit(torch.randn(40, 4))
    assert "why: Log of a negative value" in caplog.text
    assert "could not be run again" not in caplog.text
