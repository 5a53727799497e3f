"""Layers that are dead or saturated, and layers that only look so."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headway.preflight.runner import CheckResult, run_check


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    torch.manual_seed(0)
    gc.collect()  # the models of the tests before would be found as well


_draws = torch.Generator().manual_seed(0)
X = torch.randn(32, 8, generator=_draws)
Y = torch.randint(0, 3, (32,), generator=_draws)


def train(model: nn.Module, steps: int = 3, x: torch.Tensor = X, lr: float = 1e-3) -> CheckResult:
    def work() -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), Y).backward()
            optimizer.step()

    return seen(work, steps)


def seen(work: Callable[[], object], steps: int = 3) -> CheckResult:
    checked = run_check(work, max_steps=steps)
    if checked.error is not None:
        raise checked.error
    return checked


def codes(checked: CheckResult) -> set[str]:
    return {item.code for item in checked.report.findings if item.severity >= 20}


def mlp(activation: Callable[[], nn.Module], wide: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, wide), activation(), nn.Linear(wide, wide), activation(), nn.Linear(wide, 3)
    )


class Functional(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], bias: float = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        nn.init.constant_(self.layers[1].bias, bias)
        self.head = nn.Linear(8, 3)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.function(layer(x))
        return self.head(x)


# Dead units.


def test_large_negative_bias() -> None:
    model = mlp(nn.ReLU)
    nn.init.constant_(model[0].bias, -50)
    checked = train(model)
    finding = next(item for item in checked.report.findings if item.code == "HD304")
    assert finding.where.module == "1"
    assert "all units" in finding.message


@pytest.mark.parametrize(
    "function", [F.relu, torch.relu, lambda x: x.relu(), lambda x: x.clamp(min=0), F.gelu]
)
def test_functional_in_a_loop(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = [i for i in train(Functional(function, -50)).report.findings if i.code == "HD304"]
    assert len(found) == 1
    assert "#2" in found[0].message
    assert found[0].where.line is not None


def test_dead_channels_of_a_convolution() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 3),
    )  # fmt: skip
    nn.init.constant_(model[0].bias, -20)
    assert "HD304" in codes(train(model, x=torch.randn(32, 1, 8, 8)))


def test_killed_during_training() -> None:
    model = mlp(nn.ReLU)

    def work() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for at in range(60):
            if at == 10:
                with torch.no_grad():
                    model[2].bias.fill_(-100)
            optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()

    found = [i for i in seen(work, 60).report.findings if i.code == "HD304"]
    assert found
    assert found[0].step is not None
    assert found[0].step >= 10


def test_sparse_relu_is_healthy() -> None:
    model = mlp(nn.ReLU, 64)
    nn.init.constant_(model[0].bias, -0.5)
    nn.init.constant_(model[2].bias, -0.2)
    assert "HD304" not in codes(train(model, 30))


def test_hinge_at_zero_is_no_layer() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 16))

    def work() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            z = model(X)
            (
                F.relu(z - 100) + F.relu(0.2 + z @ z.T - 1e4).mean() + 1e-3 * z.pow(2)
            ).mean().backward()
            optimizer.step()

    assert "HD304" not in codes(seen(work, 5))


def test_small_batches_are_healthy() -> None:
    def work() -> None:
        model = mlp(nn.ReLU)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for at in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(X[at : at + 1]), Y[at : at + 1]).backward()
            optimizer.step()

    assert "HD304" not in codes(seen(work, 20))


def test_dead_layer_of_one_of_two_models() -> None:
    def work() -> None:
        first, second = mlp(nn.ReLU), mlp(nn.ReLU)
        nn.init.constant_(second[0].bias, -50)
        optimizers = [torch.optim.Adam(model.parameters()) for model in (first, second)]
        for _ in range(4):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(X), Y).backward()
                optimizer.step()

    assert "HD304" in codes(seen(work, 4))


# Saturation.


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid])
def test_pinned_hidden_layer(activation: Callable[[], nn.Module]) -> None:
    model = mlp(activation)
    with torch.no_grad():
        model[0].weight.mul_(100)
    assert "HD305" in codes(train(model))


def test_pinned_functional() -> None:
    model = Functional(torch.tanh)
    with torch.no_grad():
        model.layers[1].weight.mul_(200)
    assert "HD305" in codes(train(model))


def test_usual_tanh() -> None:
    assert not codes(train(mlp(nn.Tanh), 30)) & {"HD304", "HD305", "HD316", "HD908"}


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.body, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 3)
        nn.init.constant_(self.gate.bias, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sigmoid(self.gate(x)) * F.relu(self.body(x)))


def test_open_gate() -> None:
    assert "HD305" not in codes(train(Gated()))


def test_generator_that_paints_black() -> None:
    G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 64), nn.Tanh())
    D = nn.Sequential(nn.Linear(64, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    nn.init.constant_(G[2].bias, -10)

    def work() -> None:
        first, second = (torch.optim.Adam(m.parameters(), lr=1e-4) for m in (G, D))
        for _ in range(5):
            second.zero_grad()
            D(G(torch.randn(16, 4)).detach()).mean().backward()
            second.step()
            first.zero_grad()
            F.softplus(-D(G(torch.randn(16, 4)))).mean().backward()
            first.step()

    assert "HD305" not in codes(seen(work, 5))


def test_sigmoid_output_of_a_confident_classifier() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Sigmoid())
    nn.init.constant_(model[2].bias, -12)

    def work() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            F.binary_cross_entropy(model(X), torch.zeros(32, 16)).backward()
            optimizer.step()

    assert "HD305" not in codes(seen(work, 5))
