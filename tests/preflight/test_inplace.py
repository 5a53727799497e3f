"""Both lines of a write that breaks a backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.preflight.runner import CheckResult, run_check


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


class Net(nn.Module):
    def __init__(self, forward: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 1)
        self.act = nn.ReLU(inplace=True)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def train(forward: Callable[[Net, Tensor], Tensor], steps: int = 3) -> None:
    torch.manual_seed(0)
    net = Net(forward)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(6, 4)).mean().backward()
        optimizer.step()


def residual(net: Net, x: Tensor) -> Tensor:
    h = torch.tanh(net.fc1(x))
    h += x
    return net.fc2(h)


def indexed(net: Net, x: Tensor) -> Tensor:
    h = torch.sigmoid(net.fc1(x))
    h[:, 0] = 0.0
    return net.fc2(h)


def view(net: Net, x: Tensor) -> Tensor:
    h = net.fc1(x).exp()
    h[:, 1].mul_(2)
    return net.fc2(h)


def relu_after_sigmoid(net: Net, x: Tensor) -> Tensor:
    h = torch.sigmoid(net.fc1(x))
    net.act(h)
    return net.fc2(h)


def dropout_in_place(net: Net, x: Tensor) -> Tensor:
    h = torch.exp(net.fc1(x))
    F.dropout(h, 0.5, inplace=True)
    return net.fc2(h)


def found(checked: CheckResult) -> Any:
    [finding] = [item for item in checked.report.findings if item.code == "HD907"]
    assert checked.report.causes[0].code == "HD907"
    return finding


@pytest.mark.parametrize("forward", [residual, indexed, view, relu_after_sigmoid, dropout_in_place])
def test_both_lines_are_named(forward: Callable[[Net, Tensor], Tensor]) -> None:
    finding = found(run_check(lambda: train(forward)))
    first = forward.__code__.co_firstlineno
    assert finding.where.line == first + 2
    assert finding.evidence["needed_at"].endswith(f":{first + 1}")


def test_an_optimizer_that_steps_too_soon() -> None:
    def work() -> None:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(6, 4)
        one, two = net(x).mean(), net(x).pow(2).mean()
        one.backward()
        optimizer.step()
        two.backward()

    finding = found(run_check(work))
    assert "the optimizer's step" in finding.message
    assert finding.where.line == work.__code__.co_firstlineno + 6


def test_a_weight_written_to() -> None:
    def work() -> None:
        net = nn.Linear(4, 1)
        net.weight.clamp_(-1, 1)

    finding = found(run_check(work))
    assert finding.where.op == "clamp_"
    assert finding.where.line == work.__code__.co_firstlineno + 2


def harmless(net: Net, x: Tensor) -> Tensor:
    h = net.act(net.fc1(x))
    h = h * 1.0
    h += x
    h[:, 0] = 0.0
    return net.fc2(h)


def test_writes_that_do_no_harm() -> None:
    checked = run_check(lambda: train(harmless))
    assert checked.error is None
    assert not checked.report.findings
