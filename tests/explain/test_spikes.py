"""Jumps that are finite but huge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.replay_runs import traced, traced_over
from torch import Tensor, nn

from headway.explain import spikes
from headway.explain.explanation import Spike


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def regress(net: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.mse_loss(net(x), y)


def classify(net: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(net(x), y)


def usual_of(net: nn.Module, batch: Any, compute: Any) -> dict[str, float]:
    norms = traced(net, batch, compute, symptom="spike").trace.ends.norms
    net.zero_grad()
    return {f"grad_norm/{name}": norm for name, norm in norms.items()}


def spike_of(net: nn.Module, batch: Any, compute: Any, **more: Any) -> Spike:
    found = traced(net, batch, compute, symptom="spike", **more)
    return spikes.find_spike(found.trace, found.script)


def test_target_far_off_is_named() -> None:
    net = model()
    x, y = torch.randn(16, 4), torch.randn(16, 3)
    usual = usual_of(net, (x, y), regress)
    y = y.clone()
    y[11] = 1e4
    spike = spike_of(net, (x, y), regress, usual=usual)
    assert spike.rows == (11,)
    assert spike.layers
    assert spike.growth[0] == max(spike.growth) > 100


def test_huge_input_under_a_bounded_loss_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    usual = usual_of(net, (x, y), classify)
    x = x.clone()
    x[5] *= -1e4
    spike = spike_of(net, (x, y), classify, usual=usual)
    assert spike.rows == (5,)


def test_layer_that_grew_most_stands_first() -> None:
    net = model()
    x, y = torch.randn(16, 4), torch.randn(16, 3)
    usual = usual_of(net, (x, y), regress)
    usual["grad_norm/2.bias"] /= 1000
    spike = spike_of(net, (x, y), regress, usual=usual)
    assert spike.layers == ("2.bias",)
    assert spike.growth == pytest.approx((1000,))


def test_without_knowing_what_is_usual_the_largest_stand_first() -> None:
    spike = spike_of(model(), (torch.randn(16, 4), torch.randn(16, 3)), regress)
    assert len(spike.layers) == 4
    assert spike.growth == ()


def test_component_that_grew() -> None:
    def compute(net: nn.Module, batch: Any) -> dict[str, Tensor]:
        out = net(batch)
        return {"fit": out.square().mean() + 50, "prior": out.abs().mean() * 10}

    usual = {"loss/fit": 50.0, "loss/prior": 0.01}
    spike = spike_of(model(), torch.randn(16, 4), compute, usual=usual)
    assert spike.component == "prior"


def test_even_batch_names_nobody() -> None:
    x = torch.randn(16, 4)
    assert spike_of(model(), (x, torch.full((16, 3), 1e5)), regress).rows == ()


def test_second_of_two_batches() -> None:
    good = (torch.randn(16, 4), torch.randn(16, 3))
    bad = (torch.randn(16, 4), torch.randn(16, 3))
    bad[1][7] = 1e5
    found = traced_over(model(), [good, bad], regress, symptom="spike")
    spike = spikes.find_spike(found.trace, found.script)
    assert (spike.batch, spike.rows) == (1, (7,))


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([1.0, 1.1, 0.9, 50.0], (3,)),
        ([1.0, 1.0, 1.0, 1.0], ()),
        ([0.0, 0.0, 0.0, 0.1], (3,)),
        ([1.0, 100.0], (1,)),
        ([1.0, 5.0], ()),
        ([1.0], ()),
        ([1.0, 1.0, 50.0, 60.0, 70.0], ()),
    ],
)
def test_outliers(sizes: list[float], rows: tuple[int, ...]) -> None:
    assert spikes.outliers(sizes) == rows
