"""Terms that have lost their graph, in several spellings, and numbers that may be added."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.core.findings import Severity
from headway.preflight.runner import CheckResult, run_check

Loss = Callable[["Net", Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, 4)
        self.kept: Tensor = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        self.kept = h.data
        return self.head(h)


def train(loss_of: Loss, *, begins: int = 0, steps: int = 6) -> CheckResult:
    def work() -> None:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        mixed = torch.randn(6, 4)
        for step in range(steps):
            x = torch.randn(24, 6)
            y = torch.sin(x @ mixed)
            loss = loss_of(model, x, y) if step >= begins else F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    gc.collect()
    return run_check(work, max_steps=None)


def rough(track: Tensor) -> float:
    found = np.diff(track.detach().numpy(), axis=1)
    return float((found**2).mean())


def kept_features(model: Net, x: Tensor, y: Tensor) -> Tensor:
    losses = {"fit": F.mse_loss(model(x), y), "sparse": 0.1 * model.kept.abs().mean()}
    return sum(losses.values())  # type: ignore[return-value]


def by_numpy(model: Net, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    smooth = rough(out)
    return (out - y).pow(2).mean() + 0.5 * smooth


def without_gradients(model: Net, x: Tensor, y: Tensor) -> Tensor:
    loss = F.mse_loss(model(x), y)
    with torch.no_grad():
        agreement = (model(x + 0.1) - model(x)).pow(2).mean()
    loss += 0.3 * agreement
    return loss


def by_choice(model: Net, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    share = F.one_hot(out.argmax(1), 4).float().mean(0)
    balance = (share * share.clamp(min=1e-6).log()).sum()
    return torch.stack([F.mse_loss(out, y), balance]).sum()


def teacher_against_itself() -> Loss:
    teacher = copy.deepcopy(Net())

    def loss_of(model: Net, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            soft = teacher(x)
        distilled = F.kl_div(soft.log_softmax(1), soft.softmax(1), reduction="batchmean")
        return F.mse_loss(model(x), y) + 4.0 * distilled

    return loss_of


@pytest.mark.parametrize(
    ("loss_of", "name"),
    [
        (teacher_against_itself(), "distilled is 0"),
        (kept_features, "sparse"),
        (by_numpy, "rough"),
        (without_gradients, "agreement"),
        (by_choice, "balance"),
    ],
)
@pytest.mark.parametrize("begins", [0, 12])
def test_a_term_that_came_away(loss_of: Loss, name: str, begins: int) -> None:
    checked = train(loss_of, begins=begins, steps=begins + 10)
    assert checked.error is None
    assert checked.report.causes, checked.report.findings
    first = checked.report.causes[0]
    assert first.code == "HD106", checked.report.findings
    assert (first.root.where.file or "").endswith("test_graphless_terms.py")
    assert name in first.message or name == "rough"


def data_alone(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """A flow adds what its preprocessing did to the volume."""
    volume = x.abs().log().sum(1).mean()
    return F.mse_loss(model(x), y) + volume + float(x.mean())


def compared(model: Net, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    value_without_gradient = out.mean() - out.detach().mean()
    return F.mse_loss(out, y) + value_without_gradient


def logged(model: Net, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    history.append((out.argmax(1) == y.argmax(1)).float().mean().item())
    loss = F.mse_loss(out, y)
    history.append(loss.item())
    total = torch.zeros(())
    total = total + loss
    return total + 1e-3 * len(history)


history: list[float] = []


def distilled() -> Loss:
    teacher = copy.deepcopy(Net())

    def loss_of(model: Net, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            soft = teacher(x).softmax(1)
        entropy = -(soft * soft.log()).sum(1).mean()
        return F.cross_entropy(model(x), soft) - 1.0 * entropy + F.mse_loss(model(x), y)

    return loss_of


def placeholders(model: Net, x: Tensor, y: Tensor) -> Tensor:
    """An auxiliary loss over nothing, or over padding: 0 until there is something."""
    nothing = F.mse_loss(torch.zeros(8), torch.zeros(8))
    return F.mse_loss(model(x), y) + nothing


@pytest.mark.parametrize("loss_of", [data_alone, compared, logged, placeholders, distilled()])
def test_numbers_that_may_be_added(loss_of: Loss) -> None:
    checked = train(loss_of, steps=14)
    assert checked.error is None
    loud = [item for item in checked.report.findings if item.severity >= Severity.WARNING]
    assert loud == []
