"""How models start and how they are built: real first steps."""

from __future__ import annotations

import gc
import math
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


def train(model: nn.Module, steps: int = 3, x: torch.Tensor = X) -> set[str]:
    return codes(checked(model, steps, x))


def checked(model: nn.Module, steps: int = 3, x: torch.Tensor = X) -> CheckResult:
    def work() -> None:
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), Y).backward()
            optimizer.step()

    result = run_check(work, max_steps=steps)
    if result.error is not None:
        raise result.error
    return result


def codes(result: CheckResult) -> set[str]:
    return {item.code for item in result.report.findings if item.severity >= 20}


OURS = {"HD304", "HD305", "HD316", "HD908"}


def mlp(
    depth: int = 3, wide: int = 64, activation: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(8, wide), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(wide, wide), activation()]
    return nn.Sequential(*layers, nn.Linear(wide, 3))


def filled(model: nn.Module, fill: Callable[[torch.Tensor], object]) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            fill(parameter)
    return model


# Weights.


@pytest.mark.parametrize("value", [0.5, 0.01, 0.0])
def test_constant_weights(value: float) -> None:
    result = checked(filled(mlp(), lambda weight: nn.init.constant_(weight, value)))
    assert result.report.causes[0].code == "HD316"


def test_identical_units_of_a_hidden_layer() -> None:
    model = mlp()
    with torch.no_grad():
        model[2].weight.copy_(model[2].weight[:1].expand(64, 64))
    assert "HD316" in train(model)


def test_constant_matrices_multiplied_by_hand() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.full((8, 16), 0.1))
            self.second = nn.Parameter(torch.full((16, 3), 0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ self.first) @ self.second

    assert "HD316" in train(Own())


def test_constant_recurrent_weights() -> None:
    model = Recurrent()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    assert "HD316" in train(model)


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.a = nn.Linear(8, 2, bias=False)
        self.b = nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.base(x) + self.b(self.a(x)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def lora() -> nn.Module:
    return nn.Sequential(LoRA(), LoRA(), nn.Linear(8, 3))


def residual() -> nn.Module:
    return nn.Sequential(*(Residual() for _ in range(6)), nn.LayerNorm(8), nn.Linear(8, 3))


def zero_head() -> nn.Module:
    model = mlp()
    nn.init.zeros_(model[-1].weight)
    return model


def logistic() -> nn.Module:
    model = nn.Linear(8, 3)
    nn.init.zeros_(model.weight)
    return model


def normed() -> nn.Module:
    layers = [part for _ in range(6) for part in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    return filled(nn.Sequential(*layers, nn.Linear(8, 3)), lambda weight: nn.init.normal_(weight))


def small_normal() -> nn.Module:
    return filled(mlp(3, 128), lambda weight: nn.init.normal_(weight, std=0.02))


def deep_sigmoid() -> nn.Module:
    return mlp(8, 32, nn.Sigmoid)


def separable() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3, groups=8),
        nn.Conv1d(8, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


def split() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, (1, 3)),
        nn.Conv2d(8, 8, (2, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def linear_code() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2), nn.Linear(2, 32),
                         nn.ReLU(), nn.Linear(32, 3))  # fmt: skip


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(1, 16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x.unsqueeze(-1))
        q, k, v = self.q(x), self.k(x), self.v(x)
        x = self.o(((q @ k.transpose(1, 2)) / 4).softmax(-1) @ v)
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, 16, batch_first=True)
        self.project, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.project(self.rnn(x.unsqueeze(-1))[0][:, -1]))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(1, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.into(x.unsqueeze(-1))).mean(1))


@pytest.mark.parametrize(
    "make",
    [
        lora, residual, zero_head, logistic, normed, small_normal, deep_sigmoid, separable, split,
        linear_code, Attention, Recurrent, Encoder, mlp,
    ],
)  # fmt: skip
def test_healthy(make: Callable[[], nn.Module]) -> None:
    assert not train(make()) & OURS


def test_unscaled_inputs_are_not_the_weights_fault() -> None:
    assert "HD316" not in train(mlp(), x=X * 1e4)


# Scale.


@pytest.mark.parametrize("scale", [1.0, 5.0, 1e-3])
def test_weights_of_a_wrong_scale(scale: float) -> None:
    result = checked(filled(mlp(5), lambda weight: nn.init.normal_(weight, std=scale)))
    assert "HD316" in codes(result)


def test_large_weights_before_tanh() -> None:
    model = filled(mlp(4, 64, nn.Tanh), lambda weight: nn.init.normal_(weight, std=2.0))
    assert "HD316" in train(model)


# Spectral norm.


def critic(norm: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        norm(nn.Linear(8, 64)), nn.LeakyReLU(), norm(nn.Linear(64, 64)), nn.LeakyReLU(),
        nn.Linear(64, 3),
    )  # fmt: skip


def test_spectral_norm_used_before_it_was_estimated() -> None:
    model = critic(torch.nn.utils.spectral_norm)

    def work() -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        model.eval()
        with torch.no_grad():
            model(X)
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()

    assert "HD316" in codes(run_check(work, max_steps=3))


@pytest.mark.parametrize(
    "norm", [torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.spectral_norm]
)
def test_spectral_norm_as_it_should_be(norm: Callable[[nn.Module], nn.Module]) -> None:
    assert "HD316" not in train(critic(norm), 6)


# Nonlinearities.


def test_all_linear() -> None:
    assert "HD908" in train(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)))


def test_two_layers_without_any_nonlinearity() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)
            self.drop, self.norm = nn.Dropout(0.1), nn.BatchNorm1d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.drop(self.norm(self.first(x))))

    assert "HD908" in train(Two())


def test_neighbours_in_a_sequential() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))
    finding = next(i for i in checked(model).report.findings if i.code == "HD908")
    assert finding.where.module == "2"


def test_matrices_multiplied_by_hand_without_activation() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [(8, 16), (16, 16), (16, 3)]
            self.w = nn.ParameterList(torch.randn(a, b) / math.sqrt(a) for a, b in sizes)
            self.b = nn.ParameterList(torch.zeros(b) for _, b in sizes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight, bias in zip(self.w, self.b, strict=True):
                x = x @ weight + bias
            return x

    assert "HD908" in train(Own())


def test_layers_skipped_at_random() -> None:
    class LayerDrop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.iteration = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.iteration += 1
            x = self.inner(x)
            if self.iteration % 3:
                x = x + F.relu(self.middle(x))
            return self.head(x)

    assert "HD908" not in train(LayerDrop(), 6)


def test_projection_before_a_head_of_another_part() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
            self.head = nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    assert "HD908" not in train(Model())
