"""Faults of the step itself, in the styles people write, and healthy trainings beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from headway.core.findings import Severity
from headway.preflight.observers.optimizer.optimizer_setup import OptimizerSettings
from headway.preflight.runner import CheckResult, run_check
from headway.preflight.trial.update_trials import UpdateTrials

OURS = ("HD209", "HD403", "HD404", "HD411", "HD412", "HD413")
X = torch.randn(256, 12, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(12, 4, generator=torch.Generator().manual_seed(1))).argmax(1)
T = X[:, :3].sum(1) + X[:, 3] * X[:, 4]


def mlp(*widths: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def batches(steps: int, size: int = 32) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        yield torch.randint(0, 256, (size,), generator=generator)


def checked(work: Callable[[], Any], steps: int | None = None) -> CheckResult:
    torch.manual_seed(0)
    done = run_check(work, max_steps=steps, observers=[UpdateTrials, OptimizerSettings])
    assert done.error is None
    return done


def ours(done: CheckResult) -> list[str]:
    found = done.report.findings
    return [f.code for f in found if f.code in OURS and f.severity >= Severity.WARNING]


def classify(make: Callable[[Any], Optimizer], steps: int = 20) -> Callable[[], None]:
    """A flat loop."""

    def work() -> None:
        model = mlp(12, 32, 4)
        optimizer = make(model.parameters())
        for pick in batches(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(X[pick]), Y[pick]).backward()
            optimizer.step()

    return work


# HD403, HD404


@pytest.mark.parametrize(
    "make",
    [lambda p: SGD(p, lr=30.0), lambda p: Adam(p, lr=2.0), lambda p: SGD(p, lr=8.0, momentum=0.9)],
    ids=["sgd", "adam", "momentum"],
)
def test_a_rate_that_is_too_high(make: Callable[[Any], Optimizer]) -> None:
    done = checked(classify(make))
    assert done.report.causes[0].code == "HD403"


def test_a_rate_so_high_that_nothing_is_a_number() -> None:
    def work() -> None:
        model = mlp(12, 32, 1)
        optimizer = SGD(model.parameters(), lr=5.0)
        for pick in batches(12):
            loss = ((model(X[pick]).squeeze(1) - T[pick]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert checked(work).report.causes[0].code == "HD403"


@pytest.mark.parametrize(
    "make",
    [lambda p: SGD(p, lr=1e-6), lambda p: AdamW(p, lr=1e-8), lambda p: SGD(p, 1e-7, momentum=0.9)],
    ids=["sgd", "adamw", "momentum"],
)
@pytest.mark.parametrize("steps", [3, 20])
def test_a_rate_that_is_too_low(make: Callable[[Any], Optimizer], steps: int) -> None:
    assert ours(checked(classify(make, steps))) == ["HD404"]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=0.3),
        lambda p: SGD(p, lr=1e-3, momentum=0.9),
        lambda p: Adam(p, lr=3e-2),
        lambda p: AdamW(p, lr=1e-5),
    ],
    ids=["sgd", "slow", "adam", "fine-tuning"],
)
@pytest.mark.parametrize("steps", [3, 20])
def test_sound_rates(make: Callable[[Any], Optimizer], steps: int) -> None:
    assert ours(checked(classify(make, steps))) == []


def test_warm_up_by_hand() -> None:
    def work() -> None:
        model = mlp(12, 32, 4)
        optimizer = Adam(model.parameters(), lr=0.0)
        for step, pick in enumerate(batches(20)):
            optimizer.param_groups[0]["lr"] = 1e-7 * (step + 1)
            optimizer.zero_grad()
            F.cross_entropy(model(X[pick]), Y[pick]).backward()
            optimizer.step()

    assert ours(checked(work)) == []


# HD413


class Uphill(Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p += group["lr"] * p.grad  # the fault


def test_an_optimizer_that_adds() -> None:
    done = checked(classify(lambda p: Uphill(p, lr=0.05), 3))
    assert ours(done) == ["HD413"]
    where = done.report.findings[0].where
    assert where.file == __file__
    assert where.line is not None
    assert "# the fault" in Path(__file__).read_text().splitlines()[where.line - 1]


@pytest.mark.parametrize("form", ["loss", "grad", "hook", "maximize", "module"])
def test_a_flipped_sign(form: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(12, 16, 4)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            loss = nn.CrossEntropyLoss()(self.body(x), y)
            return {"loss": -loss if form == "module" else loss}

    def work() -> None:
        model = Model()
        optimizer = Adam(model.parameters(), lr=1e-3, maximize=form == "maximize")
        if form == "hook":
            for parameter in model.parameters():
                parameter.register_hook(lambda grad: -grad)
        for pick in batches(4):
            loss = model(X[pick], Y[pick])["loss"]
            optimizer.zero_grad()
            (loss * -1 if form == "loss" else loss).backward()
            if form == "grad":
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.neg_()
            optimizer.step()

    done = checked(work)
    assert ours(done) == ["HD413"]
    assert done.report.findings[0].where.file == __file__


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0]


def test_gradient_reversal_is_meant() -> None:
    def work() -> None:
        body, label, domain = mlp(12, 16, 8), nn.Linear(8, 4), nn.Linear(8, 2)
        modules = nn.ModuleList([body, label, domain])
        optimizer = Adam(modules.parameters(), lr=1e-3)
        for pick in batches(20):
            h = body(X[pick])
            where = (X[pick, 0] > 0).long()
            loss = F.cross_entropy(label(h), Y[pick])
            loss = loss + 5 * F.cross_entropy(domain(Reverse.apply(h)), where)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert ours(checked(work)) == []


def test_minimax_and_attacks_and_rewards_are_meant() -> None:
    def minimax() -> None:
        critic, maker = mlp(12, 16, 1), mlp(4, 16, 12)
        first = SGD(critic.parameters(), lr=0.01)
        second = Adam(maker.parameters(), lr=1e-3)
        for pick in batches(15):
            noise = torch.randn(32, 4)
            loss = critic(maker(noise).detach()).mean() - critic(X[pick]).mean()
            first.zero_grad()
            loss.backward()
            first.step()
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.clamp_(-0.1, 0.1)
            second.zero_grad()
            (-critic(maker(noise)).mean()).backward()
            second.step()

    def attack() -> None:
        model = mlp(12, 16, 4)
        delta = torch.zeros(12, requires_grad=True)
        optimizer = Adam([delta], lr=0.01)
        for pick in batches(15):
            optimizer.zero_grad()
            (-F.cross_entropy(model(X[pick] + delta), Y[pick])).backward()
            optimizer.step()

    def reward() -> None:
        policy = mlp(12, 16, 4)
        optimizer = Adam(policy.parameters(), lr=1e-2, maximize=True)
        for pick in batches(15):
            chosen = torch.distributions.Categorical(logits=policy(X[pick]))
            action = chosen.sample()
            gain = (action == Y[pick]).float()
            optimizer.zero_grad()
            (chosen.log_prob(action) * gain + 0.01 * chosen.entropy()).mean().backward()
            optimizer.step()

    for work in (minimax, attack, reward):
        assert ours(checked(work)) == [], work.__name__


# HD209


@pytest.mark.parametrize("style", ["functional", "by-hand", "clipped"])
def test_micro_batches_that_are_summed(style: str) -> None:
    def work() -> None:
        model = mlp(12, 32, 1)
        optimizer = SGD(model.parameters(), lr=0.01)
        for count, pick in enumerate(batches(12, size=8), 1):
            error = model(X[pick]).squeeze(1) - T[pick]
            loss = (error**2).mean() if style == "by-hand" else F.mse_loss(error, 0 * error)
            loss.backward()
            if count % 4 == 0:
                if style == "clipped":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    done = checked(work)
    assert ours(done) == ["HD209"]
    assert done.report.findings[0].evidence["micro_batches"] == 4


@pytest.mark.parametrize("divided", [False, True])
def test_a_sum_of_means_over_micro_batches(divided: bool) -> None:
    def work() -> None:
        teacher, student = mlp(12, 16, 4), mlp(12, 8, 4)
        optimizer = SGD(student.parameters(), lr=0.01)
        for count, pick in enumerate(batches(15, size=8), 1):
            scores = student(X[pick])
            wanted = teacher(X[pick]).detach().softmax(1)
            soft = F.kl_div(scores.log_softmax(1), wanted, reduction="batchmean")
            loss = 0.3 * F.cross_entropy(scores, Y[pick]) + 0.7 * soft
            (loss / 5 if divided else loss).backward()
            if count % 5 == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert ours(checked(work)) == ([] if divided else ["HD209"])


@pytest.mark.parametrize("style", ["loss", "grad", "tasks", "lines"])
def test_sums_that_are_meant(style: str) -> None:
    def work() -> None:
        model = nn.ModuleList([mlp(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)])
        optimizer = SGD(model.parameters(), lr=0.01)
        for pick in batches(4):
            for task in (1, 2):
                head = model[task] if style == "tasks" else model[1]
                rows = pick[task::2]
                loss = F.cross_entropy(head(model[0](X[rows])), Y[rows])
                if style == "loss":
                    (loss / 2).backward()
                elif style == "lines" and task == 2:
                    loss.backward()
                else:
                    loss.backward()
            if style == "grad":
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.div_(2)
            optimizer.step()
            optimizer.zero_grad()

    assert ours(checked(work)) == []


# HD412, HD411


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=0.05, momentum=0.9, weight_decay=1.0),
        lambda p: AdamW(p, lr=1e-2, weight_decay=20.0),
        lambda p: Adam(p, lr=1e-2, weight_decay=10.0),
    ],
    ids=["sgd", "adamw", "adam"],
)
def test_decay_that_takes_the_weights(make: Callable[[Any], Optimizer]) -> None:
    assert ours(checked(classify(make, 30))) == ["HD412"]


def test_a_penalty_that_takes_the_weights() -> None:
    def work() -> None:
        model = mlp(12, 32, 4)
        optimizer = SGD(model.parameters(), lr=0.05)
        for pick in batches(30):
            penalty = sum(p.pow(2).sum() for p in model.parameters())
            optimizer.zero_grad()
            (F.cross_entropy(model(X[pick]), Y[pick]) + penalty).backward()
            optimizer.step()

    assert ours(checked(work)) == ["HD412"]


@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_usual_decay(decay: float) -> None:
    assert ours(checked(classify(lambda p: SGD(p, 0.1, weight_decay=decay)))) == []


def test_eps_of_an_optimizer() -> None:
    assert ours(checked(classify(lambda p: Adam(p, lr=1e-3, eps=1e-16), 3))) == ["HD411"]
    assert ours(checked(classify(lambda p: torch.optim.Adagrad(p, lr=1e-2), 3))) == []


# What cannot be tried is said.


def test_lbfgs_is_declined() -> None:
    def work() -> None:
        model = mlp(12, 8, 4)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    done = checked(work)
    assert ours(done) == []
    reasons = {item.code: item.reason for item in done.report.not_run}
    assert "LBFGS" in reasons["HD403"]


def test_a_closure_with_another_optimizer_is_tried() -> None:
    def work() -> None:
        model = mlp(12, 8, 4)
        optimizer = Uphill(model.parameters(), lr=0.05)
        adam = Adam(model.parameters(), lr=1e-9)

        def closure() -> Tensor:
            adam.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        for _ in range(4):
            adam.step(closure)
        del optimizer

    assert ours(checked(work)) == ["HD404"]
