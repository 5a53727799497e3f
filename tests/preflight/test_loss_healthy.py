"""Losses that look strange and are right: nothing may be said about them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.loss_trainings import codes, labels, net, train
from torch import Tensor, nn

from headway.preflight.runner import run_check


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = net(), net()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        one, other = F.normalize(self.a(x)), F.normalize(self.b(x + 0.1))
        return self.scale.exp() * one @ other.T


class TinyLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 64)
        self.head = nn.Linear(64, 200, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens))


def clip(model: Any, x: Tensor) -> Tensor:
    scores, target = model(x), torch.arange(12)
    by_hand = -(scores.log_softmax(0).diag().mean() + scores.softmax(1).diag().log().mean())
    return F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target) + by_hand


def distilled(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        teacher = F.softmax(torch.randn(12, 5) / 4, -1)
    student = F.log_softmax(model(x) / 4, -1)
    soft = F.kl_div(student, teacher, reduction="batchmean") * 16
    return soft + F.cross_entropy(model(x), labels()) + F.cross_entropy(model(x), teacher)


def masked(model: Any, x: Tensor) -> Tensor:
    tokens = torch.randint(0, 200, (4, 12), generator=torch.Generator().manual_seed(0))
    target = torch.full_like(tokens, -100)
    target[:, 3] = tokens[:, 3]
    return F.cross_entropy(model(tokens).view(-1, 200), target.view(-1))


def quantiles(model: Any, x: Tensor) -> Tensor:
    predicted = model(x)
    error = x.sum(1, keepdim=True) - predicted
    pairs = F.smooth_l1_loss(
        predicted.unsqueeze(2), x[:, None, :5].expand(12, 5, 5), reduction="none"
    )
    ranks = F.softplus(predicted[:, 0][:, None] - predicted[:, 0]).mean()
    return torch.maximum(0.1 * error, -0.9 * error).mean() + pairs.sum(2).mean() + ranks


def adversarial(model: Any, x: Tensor) -> Tensor:
    one, zero = torch.ones(12, 5), torch.zeros(12, 5)
    least_squares = F.mse_loss(model(x), torch.tensor(1.0).expand(12, 5))
    plain = F.binary_cross_entropy(model(x).sigmoid(), one)
    return plain + F.binary_cross_entropy_with_logits(model(x), zero) + least_squares


def policy(model: Any, x: Tensor) -> Tensor:
    chosen = torch.distributions.Categorical(logits=model(x))
    actions = labels()
    gained = x[:, 0] - x[:, 0].mean()
    return -(chosen.log_prob(actions) * gained).mean() - 0.01 * chosen.entropy().mean()


def several(model: Any, x: Tensor) -> Tensor:
    out = model(x)
    parts = {
        "class": F.cross_entropy(out, labels(), reduction="none").sum() / 12,
        "box": F.smooth_l1_loss(out.sigmoid(), torch.rand(12, 5)),
        "mask": (F.binary_cross_entropy_with_logits(out, torch.rand(12, 5), reduction="none"))
        .mean(1)
        .mean(),
        "penalty": 1e-4 * sum(p.pow(2).sum() for p in model.parameters()),
    }
    return sum(parts.values())  # type: ignore[return-value]


def log_probabilities(model: Any, x: Tensor) -> Tensor:
    logs = F.log_softmax(model(x), 1)
    return (
        F.nll_loss(logs, labels())
        + F.cross_entropy(logs, labels())
        + F.nll_loss((F.softmax(model(x), 1) + 1e-8).log(), labels())
    )


def by_hand(model: Any, x: Tensor) -> Tensor:
    """The normalisation is there, written apart from the score of the label."""
    scores = model(x)
    picked = scores.gather(1, labels().unsqueeze(1)).squeeze(1)
    return (scores.logsumexp(1) - picked).mean() + scores.logsumexp(1).mean() - picked.mean()


def margins(model: Any, x: Tensor) -> Tensor:
    scores = model(x)
    picked = scores[range(12), labels()]
    chosen = F.smooth_l1_loss(picked, torch.full((12,), 40.0))  # far off: linear for now
    return chosen + (1 + scores - picked[:, None]).clamp(min=0).mean()


def similar(model: Any, x: Tensor) -> Tensor:
    one, other = F.normalize(model(x)), F.normalize(model(x + 0.1)).detach()
    return -(one @ other.T).diagonal().mean()


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [
        (Clip(), clip),
        (net(), distilled),
        (TinyLM(), masked),
        (net(), quantiles),
        (net(), adversarial),
        (net(), policy),
        (net(), several),
        (net(), log_probabilities),
        (net(), by_hand),
        (net(), margins),
        (net(), similar),
        (net(1, nn.Softplus()), lambda m, x: F.mse_loss(m(x), x[:, :1].abs())),
        (net(1, nn.Tanh()), lambda m, x: F.mse_loss(5 * m(x), (2 * x[:, :1]).clamp(-5, 5))),
        (net(1), lambda m, x: F.mse_loss(m(x), x[:, :1]) + (m(x).pow(2) - x[:, :1]).pow(2).mean()),
        (net(1), lambda m, x: F.mse_loss(m(x).squeeze(-1), x.sum(1))),
        (net(6, nn.Sigmoid()), lambda m, x: F.mse_loss(m(x), x.sigmoid())),
        (net(6, nn.Sigmoid()), lambda m, x: ((m(x) * 8 - 4) - x).pow(2).mean()),
        (net(), lambda m, x: F.mse_loss(m(x).softmax(1), F.one_hot(labels(), 5).float())),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_said(model: nn.Module, loss_of: Any) -> None:
    checked = train(model, loss_of, steps=4)
    assert checked.error is None
    assert codes(checked) == set(), checked.report.findings


def test_a_variational_autoencoder_sums() -> None:
    model = nn.ModuleDict({"down": net(4), "up": nn.Linear(2, 6)})

    def loss_of(_: nn.Module, x: Tensor) -> Tensor:
        mean, spread = model["down"](x).chunk(2, 1)
        out = model["up"](mean + torch.randn_like(mean) * (0.5 * spread).exp())
        told = F.binary_cross_entropy(out.sigmoid(), x.sigmoid(), reduction="sum")
        return told - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())

    checked = train(model, loss_of)
    assert codes(checked) == set()
    assert "HD116" in {item.code for item in checked.report.findings}


def test_a_run_under_watch_is_the_same_run() -> None:
    def work(into: list[Tensor]) -> None:
        torch.manual_seed(3)
        model = net(5, nn.Dropout(0.3))
        optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
        for _ in range(6):
            x = torch.randn(12, 6)
            loss = F.cross_entropy(model(x).softmax(1), labels(), reduction="sum") / 3
            loss = loss + ((model(x)[:, :1] - x[:, 0]) ** 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        into += [p.detach().clone() for p in model.parameters()]

    plain: list[Tensor] = []
    watched: list[Tensor] = []
    work(plain)
    run_check(lambda: work(watched), max_steps=None)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))


def test_gradients_per_sample_by_vmap() -> None:
    def work() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        parameters = dict(model.named_parameters())

        def loss_of(given: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, given, (x[None],)), y[None])

        per_sample = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))
        for _ in range(3):
            plain = {name: item.detach() for name, item in parameters.items()}
            found = per_sample(plain, torch.randn(12, 6), labels())
            for name, item in parameters.items():
                item.grad = found[name].mean(0)
            optimizer.step()

    checked = run_check(work)
    assert checked.error is None
    assert codes(checked) == set()
