"""One batch learned by heart, on copies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.tape_cases import CASES, recorded, tape
from torch import nn

from headway.preflight.trial.recorded_loss import overfit_batch
from headway.torch_adapters.op_recording.op_replay import CannotReplay, OpReplay

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(16) % 4


def test_a_model_that_can_learn_its_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(inplace=True), nn.Linear(64, 4))
    before = [weight.clone() for weight in model.parameters()]
    with tape() as made:
        root = recorded(lambda: F.cross_entropy(model(X), Y), made)
        found = overfit_batch(OpReplay(made, made.roots), list(model.parameters()))
    assert found.start == pytest.approx(float(root.detach()))
    assert found.share < 0.05
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(weight.grad is None for weight in model.parameters())


def test_a_model_that_cannot() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with tape() as made:
        recorded(lambda: F.cross_entropy(model(0 * X), Y), made)
        found = overfit_batch(OpReplay(made, made.roots), list(model.parameters()))
    assert found.share > 0.9


@pytest.mark.parametrize(
    "name", ["plain", "batch_norm", "lstm", "conv", "attention", "index_put_and_views"]
)
def test_every_style_has_the_gradients_of_its_own(name: str) -> None:
    torch.manual_seed(0)
    with tape() as made:
        model, loss = CASES[name]()
        recorded(loss, made)
        found = overfit_batch(OpReplay(made, made.roots), list(model.parameters()), steps=20)
    assert found.end < 0.98 * found.start


def test_what_autograd_cannot_follow_is_declined() -> None:
    torch.manual_seed(0)
    with tape() as made:
        model, loss = CASES["gru_cell_loop"]()
        recorded(loss, made)
        with pytest.raises(CannotReplay, match=r"in-?place"):
            overfit_batch(OpReplay(made, made.roots), list(model.parameters()))
