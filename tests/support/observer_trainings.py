"""Parts of small trainings, for the tests of observers: a net, a batch, a loop."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.core.findings import Severity
from headway.preflight.runner import CheckResult, run_check


def net(width: int = 16, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, classes))


def batch(size: int = 16, classes: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 8)
    return x, (x[:, :classes].argmax(dim=1)).long()


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    each: Callable[[int], Any] | None = None,
) -> None:
    for step in range(steps):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if each is not None:
            each(step)


def checked(work: Callable[[], Any], steps: int = 6) -> CheckResult:
    gc.collect()  # what another test has left is no part of this one
    torch.manual_seed(1)
    done = run_check(work, max_steps=steps)
    if done.error is not None:
        raise done.error
    assert not done.report.notes, done.report.notes
    return done


def codes(work: Callable[[], Any], steps: int = 6) -> list[str]:
    """What is told at warning or above."""
    found = checked(work, steps).report.findings
    return sorted({item.code for item in found if item.severity >= Severity.WARNING})


def first_cause(work: Callable[[], Any], steps: int = 6) -> str | None:
    causes = checked(work, steps).report.causes
    return causes[0].code if causes else None
