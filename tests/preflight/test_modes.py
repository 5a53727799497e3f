"""Real trainings whose layers are in the wrong mode, and look-alikes that are in the right one."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headway.preflight.runner import run_check


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    torch.manual_seed(0)
    gc.collect()  # the models of the tests before would be found as well


def codes(work: Callable[[], object], steps: int = 6) -> set[str]:
    checked = run_check(work, max_steps=steps)
    if checked.error is not None:
        raise checked.error
    return {item.code for item in checked.report.findings if item.severity >= 20}


_draws = torch.Generator().manual_seed(0)
X = torch.randn(32, 8, generator=_draws)
Y = torch.randint(0, 3, (32,), generator=_draws)


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return (model(X).argmax(1) == Y).float().mean().item()


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.p = nn.Linear(8, 16), nn.Linear(16, 3), 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.dropout(F.relu(self.a(x)), self.p, training=self.training))


def train(model: nn.Module, steps: int = 6, between: Callable[[], object] | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        step(model, optimizer)
        if between is not None:
            between()


# Training in evaluation mode.


@pytest.mark.parametrize("make", [net, Functional])
def test_eval_before_training(make: Callable[[], nn.Module]) -> None:
    assert "HD902" in codes(lambda: train(make().eval()), 3)


def test_never_back_after_validation() -> None:
    def work() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            for _ in range(3):
                step(model, optimizer)
            model.eval()
            accuracy(model)

    assert codes(work, 9) & {"HD902", "HD903"} == {"HD902"}


def test_rate_latched_by_the_evaluation() -> None:
    def work() -> None:
        model = Functional()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _epoch in range(3):
            for _ in range(3):
                step(model, optimizer)
            model.p = 0.0
            accuracy(model)

    assert "HD902" in codes(work, 9)


def test_one_trained_part_left_in_evaluation_mode() -> None:
    def work() -> None:
        model = nn.Sequential(net(), nn.ReLU(), nn.Linear(3, 3), nn.Dropout(0.1))
        model[0].eval()
        train(model)

    assert "HD902" in codes(work)


def frozen_batch_norms() -> None:
    model = net()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    train(model)


def frozen_backbone() -> None:
    backbone = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)).eval()
    backbone.requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.01)
    for _ in range(6):
        step(model, optimizer)


def no_such_layers() -> None:
    train(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).eval())


def adversarial() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        model.eval()
        x = X.clone().requires_grad_()
        F.cross_entropy(model(x), Y).backward()
        optimizer.zero_grad()
        model.train()
        F.cross_entropy(model(x.detach()), Y).backward()
        optimizer.step()


def good_validation() -> None:
    model = net()

    def validate() -> None:
        model.eval()
        accuracy(model)
        model.train()

    train(model, between=validate)


def teacher() -> None:
    model = net()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        with torch.no_grad():
            target = average(X).softmax(1)
        optimizer.zero_grad()
        (F.cross_entropy(model(X), Y) + F.mse_loss(model(X).softmax(1), target)).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)


def monte_carlo() -> None:
    model = Functional()

    def uncertain() -> None:
        with torch.no_grad():
            many = torch.stack([model(X).softmax(1) for _ in range(5)])
        (many.mean(0).argmax(1) == Y).float().mean()

    train(model, between=uncertain)


def monte_carlo_judged_by_pass() -> None:
    model = Functional()
    train(model, between=lambda: [accuracy(model) for _ in range(5)])


def acting() -> None:
    model = Functional()

    def act() -> None:
        with torch.no_grad():
            for at in range(5):
                model(X[at : at + 1]).argmax(1).item()

    train(model, between=act)


def gan() -> None:
    G, D = net(), nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    first = torch.optim.Adam(G.parameters(), lr=1e-3)
    second = torch.optim.Adam(D.parameters(), lr=1e-3)
    real, one, zero = torch.randn(32, 3), torch.ones(32, 1), torch.zeros(32, 1)
    bce = nn.BCEWithLogitsLoss()
    for _ in range(6):
        with torch.no_grad():
            fake = G(torch.randn(32, 8))
        second.zero_grad()
        (bce(D(real), one) + bce(D(fake), zero)).backward()
        second.step()
        first.zero_grad()
        bce(D(G(torch.randn(32, 8))), one).backward()
        first.step()
        with torch.no_grad():
            G(torch.randn(4, 8)).clamp(-1, 1)


def sanity_first() -> None:
    model = net()
    with torch.no_grad():
        F.cross_entropy(model(X), Y)
    accuracy(model)
    train(model)


@pytest.mark.parametrize(
    "work",
    [
        frozen_batch_norms,
        frozen_backbone,
        no_such_layers,
        adversarial,
        good_validation,
        teacher,
        monte_carlo,
        monte_carlo_judged_by_pass,
        acting,
        gan,
        sanity_first,
    ],
)
def test_healthy(work: Callable[[], None]) -> None:
    assert codes(work) & {"HD902", "HD903", "HD906", "HD909"} == set()


# Evaluation in training mode.


@pytest.mark.parametrize("make", [net, Functional])
def test_validation_without_eval(make: Callable[[], nn.Module]) -> None:
    def work() -> None:
        model = make()
        train(model, between=lambda: accuracy(model))

    assert "HD903" in codes(work)


def test_loss_and_accuracy_of_two_passes() -> None:
    def work() -> None:
        model = net()

        def validate() -> None:
            with torch.no_grad():
                F.cross_entropy(model(X), Y)
            accuracy(model)

        train(model, between=validate)

    assert "HD903" in codes(work)


def test_accuracy_outside_torch() -> None:
    def work() -> None:
        model = Functional()

        def validate() -> None:
            with torch.no_grad():
                predicted = model(X).argmax(1).numpy()
            (predicted == Y.numpy()).mean()

        train(model, between=validate)

    assert "HD903" in codes(work)


def test_hand_written_metric_in_inference_mode() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))
            self.optimizer = torch.optim.Adam(self.model.parameters())

        @torch.inference_mode()
        def validate(self) -> float:
            return sum(((self.model(X) - X[:, :1]) ** 2).mean().item() for _ in [1])

        def fit(self) -> None:
            for _ in range(6):
                self.optimizer.zero_grad()
                ((self.model(X) - X[:, :1]) ** 2).mean().backward()
                self.optimizer.step()
                self.validate()

    assert "HD903" in codes(lambda: Trainer().fit())


@pytest.mark.parametrize("how", [{"track_running_stats": False}, {"momentum": 0.0}])
def test_statistics_that_cannot_be_used(how: dict[str, object]) -> None:
    def work() -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, **how), nn.ReLU(), nn.Linear(8, 3))

        def validate() -> None:
            model.eval()
            accuracy(model)
            model.train()

        train(model, between=validate)

    assert codes(work) & {"HD902", "HD903"} == {"HD903"}


@pytest.mark.parametrize("evaluated", [True, False])
def test_statistics_that_are_only_kept_from_a_second_pass(evaluated: bool) -> None:
    """SAM's example: momentum is 0 while the perturbed weights run, and comes back afterwards."""

    def work() -> None:
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8)
        model = nn.Sequential(nn.Linear(8, 8), norm, nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(8):
            model.train()
            for norm.momentum in (0.1, 0):
                optimizer.zero_grad()
                F.cross_entropy(model(X), Y).backward()
            optimizer.step()
            model.eval()
            if evaluated:
                accuracy(model)

    assert codes(work) & {"HD902", "HD903"} == set()


class Unhearing(nn.Module):
    """Dropouts that `eval()` does not reach."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.inner, self.out = how, nn.Linear(8, 16), nn.Linear(16, 3)
        self.hidden = [nn.Dropout(0.3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x).relu()
        if self.how == "default":
            h = F.dropout(h, 0.3)
        elif self.how == "listed":
            h = self.hidden[0](h)
        elif self.how == "attention":
            h = F.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=0.3)[0]
        else:
            h = F.dropout(h, 0.3, self.training)
        logits: torch.Tensor = self.out(h)
        return logits


def validated(model: nn.Module, samples: int = 1) -> Callable[[], None]:
    def validate() -> None:
        model.eval()
        for _ in range(samples):
            accuracy(model)
        model.train()

    return lambda: train(model, between=validate)


@pytest.mark.parametrize("how", ["default", "listed", "attention"])
def test_dropout_that_does_not_hear_eval(how: str) -> None:
    assert "HD903" in codes(validated(Unhearing(how)))


def test_dropout_that_hears_it_or_is_sampled_from() -> None:
    assert "HD903" not in codes(validated(Unhearing("asked")))
    assert "HD903" not in codes(validated(Unhearing("default"), samples=5))
