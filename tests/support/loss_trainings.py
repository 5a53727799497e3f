"""Small trainings for tests of losses: a net, three steps, and the codes that were found."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor, nn

from headway.preflight.runner import CheckResult, run_check

Loss = Callable[[nn.Module, Tensor], Tensor]


def net(outputs: int = 5, *tail: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs), *tail)


def train(model: nn.Module, loss_of: Loss, steps: int = 3, rate: float = 1e-3) -> CheckResult:
    gc.collect()  # what other tests have left behind would be found, too

    def work() -> None:
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), rate)
        for _ in range(steps):
            loss = loss_of(model, torch.randn(12, 6))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run_check(work, max_steps=steps)


def codes(checked: CheckResult) -> set[str]:
    return {item.code for item in checked.report.findings if str(item.severity) != "info"}


def labels(classes: int = 5, count: int = 12) -> Tensor:
    return torch.randint(0, classes, (count,), generator=torch.Generator().manual_seed(1))
