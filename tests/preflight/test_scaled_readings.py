"""Gradients between backward and step: norms read with the scale in them, and gradients that are
cleared.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.core.findings import Finding
from headway.preflight.observers.gradient_scaling import ScaledReadings
from headway.preflight.runner import CheckResult, run_check

Reading = Callable[[nn.Module, GradScaler, Optimizer], object]


def train(read: Reading, *, enabled: bool = True, steps: int = 4) -> CheckResult:
    def work() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        scaler = GradScaler("cpu", init_scale=1024.0, enabled=enabled)
        for _ in range(steps):
            x = torch.randn(24, 6)
            loss = F.mse_loss(model(x), x[:, :4])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            read(model, scaler, optimizer)
            scaler.step(optimizer)
            scaler.update()

    checked = run_check(work, max_steps=None, observers=[ScaledReadings])
    assert checked.error is None
    assert not checked.notes
    return checked


def misread(checked: CheckResult) -> list:
    return [item for item in checked.report.findings if item.code == "HD002"]


def added(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> float:
    return sum(p.grad.norm().item() for p in model.parameters())  # type: ignore[union-attr]


def squared(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> float:
    norms = [p.grad.detach().data.norm(2) for p in model.parameters()]  # type: ignore[union-attr]
    return float(torch.norm(torch.stack(norms)))


def by_torch(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> object:
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])  # type: ignore[misc]


@pytest.mark.parametrize("read", [added, squared, by_torch])
def test_the_scale_is_still_in_them(read: Reading) -> None:
    found = misread(train(read))
    assert len(found) == 1
    assert str(found[0].severity) == "warning"
    assert found[0].where.file == __file__
    assert found[0].evidence["scale"] == 1024
    assert 0.01 < found[0].evidence["true_norm"] < 10
    assert found[0].evidence["added"] > 1024 * found[0].evidence["true_norm"]


def unscaled(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> float:
    scaler.unscale_(optimizer)
    return added(model, scaler, optimizer)


def by_hand(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> float:
    return math.fsum(
        (p.grad / scaler.get_scale()).norm().item()  # type: ignore[operator]
        for p in model.parameters()
    )


def one_of_them(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> float:
    return float(next(model.parameters()).grad.norm())  # type: ignore[union-attr]


def clipped(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def of_weights(model: nn.Module, scaler: GradScaler, optimizer: Optimizer) -> float:
    return sum(p.norm().item() for p in model.parameters())


@pytest.mark.parametrize("read", [unscaled, by_hand, one_of_them, clipped, of_weights])
def test_norms_that_may_be_read(read: Reading) -> None:
    assert not misread(train(read))


def test_without_a_scale_there_is_nothing_to_misread() -> None:
    assert not misread(train(added, enabled=False))


def cleared(kind: str) -> list[Finding]:
    """`zero_grad()` stands before the step, after it, or in a pass of its own."""

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(5):
            x = torch.randn(8, 4)
            if kind == "own pass":
                net(x).mean().backward()
                net.zero_grad()
            (net(x) - x[:, :1]).square().mean().backward()
            if kind == "before":
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
            optimizer.zero_grad()

    gc.collect()
    done = run_check(work, max_steps=None)
    assert done.error is None
    return [item for item in done.report.findings if item.code == "HD204"]


def test_gradients_that_are_cleared_before_the_step() -> None:
    [finding] = cleared("before")
    lines = Path(__file__).read_text().splitlines()
    assert "set_to_none=False" in lines[(finding.where.line or 1) - 1]
    assert cleared("after") == cleared("own pass") == []
