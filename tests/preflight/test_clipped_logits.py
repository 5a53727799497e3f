"""A ReLU or a clamp between the last layer and the loss; and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.loss_trainings import labels, net, train
from torch import nn


def found(model: nn.Module, loss_of: Any) -> list[Any]:
    checked = train(model, loss_of)
    assert checked.error is None
    return [item for item in checked.report.findings if item.code == "HD120"]


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [
        (net(5, nn.ReLU()), lambda m, x: F.cross_entropy(m(x), labels())),
        (net(), lambda m, x: F.nll_loss(F.log_softmax(F.relu(m(x)), 1), labels())),
        (net(), lambda m, x: F.cross_entropy(m(x).clamp(min=0), labels())),
        (
            net(1),
            lambda m, x: F.binary_cross_entropy_with_logits(
                m(x).relu().squeeze(1), (labels() > 2).float()
            ),
        ),
    ],
)
def test_logits_that_are_clipped(model: nn.Module, loss_of: Any) -> None:
    [finding] = found(model, loss_of)
    assert "clipped to 0" in finding.message
    assert (finding.where.file or "").endswith("test_clipped_logits.py")


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [
        (net(), lambda m, x: F.cross_entropy(m(x), labels())),
        (net(5, nn.LeakyReLU()), lambda m, x: F.cross_entropy(m(x), labels())),
        (net(), lambda m, x: F.cross_entropy(m(x).clamp(-50, 50), labels())),
        (
            net(),  # prototypes: the logits are negative distances
            lambda m, x: F.cross_entropy(-(torch.cdist(m(x), torch.eye(5)) ** 2), labels()),
        ),
        (net(1, nn.ReLU()), lambda m, x: F.mse_loss(m(x), x[:, :1].abs())),
    ],
)
def test_logits_that_are_free(model: nn.Module, loss_of: Any) -> None:
    assert not found(model, loss_of)
