"""Losses that are given the wrong thing, in several styles of writing a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.loss_trainings import Loss, codes, labels, net, train
from torch import Tensor, nn


def partly() -> Tensor:
    """Labels of which -1 means: unknown."""
    return torch.where(labels() == 2, -1, labels())


class OwnLoss(nn.Module):
    """A criterion of one's own around torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.inner(output, target) * 0.7


class LossInside(nn.Module):
    """The model computes its loss, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        scores = self.net(x).softmax(-1)
        return {"loss": F.cross_entropy(scores.view(-1, 5), target), "logits": scores}


class Squared(nn.Module):
    """An output that cannot be negative, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) ** 2


@pytest.mark.parametrize(
    ("model", "loss_of", "code"),
    [
        (net(5, nn.Softmax(dim=1)), lambda m, x: F.cross_entropy(m(x), labels()), "HD110"),
        (net(), lambda m, x: OwnLoss()(torch.softmax(m(x), 1), labels()), "HD110"),
        (LossInside(), lambda m, x: m(x, target=labels())["loss"], "HD110"),
        (net(), lambda m, x: F.cross_entropy(m(x).sigmoid(), labels()), "HD110"),
        (net(), lambda m, x: F.nll_loss(m(x), labels()), "HD111"),
        (net(), lambda m, x: nn.NLLLoss()(m(x).softmax(1), labels()), "HD111"),
        (net(), lambda m, x: F.nll_loss(F.log_softmax(m(x), dim=0), labels()), "HD111"),
        (net(), lambda m, x: -F.softmax(m(x), 0).log()[range(12), labels()].mean(), "HD111"),
        (net(), lambda m, x: -m(x)[range(12), labels()].mean(), "HD111"),
        (net(), lambda m, x: -m(x).log_softmax(1)[range(12), partly()].mean(), "HD505"),
        (net(), lambda m, x: -(F.one_hot(labels(), 5) * m(x)).sum(1).mean(), "HD111"),
        (net(), lambda m, x: -torch.einsum("nc,nc->", m(x), F.one_hot(labels(), 5) / 12), "HD111"),
        (
            net(1, nn.Softmax(dim=1)),
            lambda m, x: F.binary_cross_entropy(m(x).squeeze(1), (labels() > 2).float()),
            "HD111",
        ),
        (
            net(1, nn.Sigmoid()),
            lambda m, x: nn.BCEWithLogitsLoss()(m(x).squeeze(-1), (labels() > 2).float()),
            "HD111",
        ),
        (net(1), lambda m, x: F.cross_entropy(m(x), labels(1)), "HD111"),
        (net(), lambda m, x: F.kl_div(m(x).softmax(1), torch.full((12, 5), 0.2)), "HD111"),
        (net(), lambda m, x: F.cross_entropy(m(x), torch.randn(12, 5)), "HD111"),
        (net(1), lambda m, x: F.mse_loss(m(x), x.sum(1)), "HD109"),
        (net(1), lambda m, x: ((m(x) - x.sum(1)) ** 2).mean(), "HD109"),
        (net(1), lambda m, x: (x.sum(1).unsqueeze(1) - m(x).squeeze()).abs().mean(), "HD109"),
        (net(1), lambda m, x: -(m(x).sigmoid().log() * x[:, 0]).mean(), "HD109"),
        (net(1), lambda m, x: F.mse_loss(m(x), x[:, :4]), "HD109"),
        (net(1), lambda m, x: F.mse_loss(m(x)[:, 0], x[:, 0] + 0.9 * m(x).detach()), "HD109"),
        (net(), lambda m, x: F.smooth_l1_loss(m(x).mean(0, keepdim=True), x[:, :5]), "HD109"),
        (net(1), lambda m, x: F.l1_loss(m(x), x[:1, :1]), "HD109"),
        (net(1), lambda m, x: -(m(x)[:, 0] * (x[:, 0] - m(x).detach())).mean(), "HD109"),
        (net(1, nn.Sigmoid()), lambda m, x: F.mse_loss(m(x), x.sum(1, keepdim=True)), "HD114"),
        (net(1, nn.Tanh()), lambda m, x: (m(x)[:, 0] - 3 * x[:, 0]).pow(2).mean(), "HD114"),
        (net(1, nn.ReLU()), lambda m, x: nn.HuberLoss()(m(x), x[:, :1]), "HD114"),
        (net(1, nn.Softplus()), lambda m, x: (m(x)[:, 0] - x[:, 0]).abs().mean(), "HD114"),
        (net(1), lambda m, x: F.mse_loss(m(x).exp(), x[:, :1]), "HD114"),
        (net(1), lambda m, x: F.l1_loss(2 / (1 + (-m(x)).exp()), 4 + x[:, :1]), "HD114"),
        (net(1, nn.Tanh()), lambda m, x: F.mse_loss(2 * m(x), 5 * x[:, :1]), "HD114"),
        (net(1, nn.ReLU6()), lambda m, x: F.smooth_l1_loss(m(x) - 1, 5 * x[:, :1]), "HD114"),
        (Squared(), lambda m, x: F.mse_loss(m(x), x[:, :1]), "HD114"),
        (
            net(1),
            lambda m, x: F.binary_cross_entropy_with_logits(m(x)[:, 0], 2.0 * (labels() > 2) - 1),
            "HD114",
        ),
        (net(), lambda m, x: F.cross_entropy(m(x), torch.full((12,), -100)), "HD112"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_wrong_thing_is_named_with_its_line(model: Any, loss_of: Any, code: str) -> None:
    checked = train(model, loss_of)
    assert checked.error is None
    assert code in codes(checked), checked.report.findings
    assert checked.report.causes[0].code == code
    found = next(item for item in checked.report.findings if item.code == code)
    assert (found.where.file or "").endswith("test_loss_calls.py")
    assert sum(item.code == code for item in checked.report.findings) == 1


@pytest.mark.parametrize(
    ("loss_of", "code"),
    [
        (lambda m, x: F.cross_entropy(m(x), labels() + 1), "HD505"),
        (lambda m, x: F.cross_entropy(m(x), labels().float()), "HD505"),
        (lambda m, x: -m(x).log_softmax(1).gather(1, partly()[:, None]).mean(), "HD505"),
        (lambda m, x: F.binary_cross_entropy(m(x)[:, 0], (labels() > 2).float()), "HD111"),
        (lambda m, x: F.cross_entropy(m(x), labels().unsqueeze(1)), "HD111"),
        (lambda m, x: nn.BCEWithLogitsLoss()(m(x)[:, :1], (labels() > 2).float()), "HD109"),
    ],
)
def test_a_call_that_raises_is_explained(loss_of: Loss, code: str) -> None:
    checked = train(net(), loss_of)
    assert checked.error is not None
    assert checked.report.causes[0].code == code


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [
        (net(), lambda m, x: F.l1_loss(m(x), x[:, :1])),  # quantiles of one target
        (net(1), lambda m, x: F.mse_loss(m(x), torch.ones(1, 1))),
        (net(), lambda m, x: F.mse_loss(torch.stack([m(x), m(x)]), x[None, :, :5])),  # an ensemble
        (net(), lambda m, x: F.mse_loss(m(x), m(x).mean(0, keepdim=True))),  # a cluster's centre
        (net(1), lambda m, x: -(m(x)[:, 0] * (x[:, 0] - x[:, :1]).exp().sum(1)).mean()),
        (net(1), lambda m, x: (m(x)[:, 0] * (x[:, 0] - m(x)[:, 0].detach())).mean()),
    ],
)
def test_shapes_that_differ_on_purpose(model: nn.Module, loss_of: Loss) -> None:
    assert "HD109" not in codes(train(model, loss_of))


def test_entries_of_unknown_labels_that_a_mask_leaves_out() -> None:
    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        rows, target = torch.arange(12), partly()
        return -(model(x).log_softmax(1)[rows, target] * (target >= 0)).sum() / 12

    assert "HD505" not in codes(train(net(), loss_of))


def test_labels_ignored_late_are_told_at_their_step() -> None:
    seen = []

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        seen.append(1)
        target = torch.full((12,), -100) if len(seen) == 9 else labels()
        return F.cross_entropy(model(x), target)

    checked = train(net(), loss_of, steps=11)
    assert checked.report.causes[0].code == "HD112"
    assert checked.report.causes[0].root.step == 8


def test_validation_tells_nothing() -> None:
    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            F.cross_entropy(model(x).softmax(1), labels())
        F.cross_entropy(model(x).softmax(1), labels()).item()
        return F.cross_entropy(model(x), labels())

    assert codes(train(net(), loss_of)) == set()


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("loss", [F.binary_cross_entropy_with_logits, F.binary_cross_entropy])
def test_labels_and_outputs_in_each_others_place(loss: Any, swapped: bool) -> None:
    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        output = model(x)
        output = output if loss is F.binary_cross_entropy_with_logits else output.sigmoid()
        wanted = F.one_hot(labels(), output.shape[1]).float()
        return loss(wanted, output) if swapped else loss(output, wanted)

    assert ("HD111" in codes(train(net(), loss_of))) is swapped
