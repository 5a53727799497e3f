"""HD803 in short runs: graphs kept in several ways, and what is kept for good reason."""

from __future__ import annotations

import inspect
from collections import deque
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.observer_trainings import batch, checked, codes, fit, net
from torch import Tensor, nn


def line_of(function: Any, words: str) -> int:
    lines, first = inspect.getsourcelines(function)
    [line] = [first + at for at, text in enumerate(lines) if text.rstrip().endswith(words)]
    return line


def adam(model: nn.Module, lr: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)


def test_a_metric_of_a_forward_that_has_no_backward():
    def work():
        model = net()
        x, y = batch(64)
        curve = []

        def look(step: int) -> None:
            curve.append((step, F.cross_entropy(model(x), y)))  # kept

        fit(model, adam(model), 40, look)

    report = checked(work, 40).report
    assert report.causes[0].code == "HD803"
    [found] = report.findings
    assert found.where.line == line_of(test_a_metric_of_a_forward_that_has_no_backward, "# kept")
    assert "`curve`" in found.message


class Log:
    """Keeps what it is told, as records."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def note(self, **record: Any) -> None:
        self.records.append(record)


@pytest.mark.parametrize("steps", [40, 120])
def test_outputs_in_the_records_of_a_log(steps: int):
    log = Log()

    def work():
        model = net()
        optimizer = adam(model)
        for step in range(steps + 20):
            x, y = batch()
            out = model(x)
            loss = F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.note(step=step, out=out, target=y)

    report = checked(work, steps).report
    assert report.causes[0].code == "HD803"
    assert "log.records" in report.causes[0].message


class Smooth(nn.Module):
    """Sees a running mean of its features."""

    def __init__(self, detach: bool) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.past, self.detach = torch.zeros(16), detach

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.encode(x))
        past = self.past.detach() if self.detach else self.past
        self.past = past * 0.9 + h.mean(dim=0) * 0.1
        return self.head(h + self.past)


def running_mean(detach: bool) -> None:
    model = Smooth(detach)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(80):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()


def test_a_running_mean_that_carries_its_graph():
    report = checked(lambda: running_mean(detach=False), 60).report
    assert [cause.code for cause in report.causes] == ["HD803"]
    assert report.findings[0].evidence["carried"]


def test_a_running_mean_without_its_graph():
    assert codes(lambda: running_mean(detach=True), 60) == []


# Kept for good reason.


@pytest.mark.slow
def test_numbers_averages_and_buffers():
    def work():
        model, average = net(), net().requires_grad_(False)
        losses: list[float] = []
        replay: list[Tensor] = []
        recent: deque[Tensor] = deque(maxlen=30)
        x, y = batch(64)

        def look(step: int) -> None:
            out = model(x)
            loss = F.cross_entropy(out, y)
            losses.append(loss.item())
            replay.append(out.detach())
            recent.append(loss)
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.05)

        fit(model, adam(model), 80, look)

    assert codes(work, 80) == []


def test_a_validation_without_no_grad_that_keeps_numbers():
    def work():
        model = net()

        def look(step: int) -> None:
            if step % 10 == 9:
                sum(F.cross_entropy(model(x), y).item() for x, y in [batch() for _ in range(6)])

        fit(model, adam(model), 60, look)

    assert codes(work, 60) == []


# One training after another.


@pytest.mark.parametrize("how", ["same", "frozen", "new"])
@pytest.mark.slow
def test_a_second_training_with_an_optimizer_of_its_own(how: str):
    def work():
        model = net()
        fit(model, adam(model), 60)
        if how == "frozen":
            model[0].requires_grad_(False)
        elif how == "new":
            model = nn.Sequential(net(classes=8), nn.Tanh(), nn.Linear(8, 4))
        fit(model, adam(model, lr=1e-3), 100)

    assert codes(work, 110) == []
