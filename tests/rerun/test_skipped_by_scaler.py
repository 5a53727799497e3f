"""A GradScaler that only lowers its scale: the op that makes the infinity, and a tested fix."""

from __future__ import annotations

from typing import Any

import torch
from support.trainings import assert_same, state_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headway import Guard, Policy


def train(guilty: bool, **options: Any) -> tuple[Guard, dict[str, Any]]:
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    rows = torch.rand(60, 3)
    with Guard(net, optimizer, scaler=scaler, **options) as guard:
        for (x,) in guard(DataLoader(TensorDataset(rows), 4)):
            optimizer.zero_grad()
            power = net(x).square() * (x > 0.5 if guilty else 1)
            loss = (power**0.3).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return guard, {**state_of(net, optimizer), "scale": scaler.get_scale()}


def test_the_fix_is_tried_and_the_training_is_the_same() -> None:
    guard, found = train(guilty=True)
    finding = next(item for item in guard.findings if item.code == "HD313")
    assert finding.where.op == "pow"
    cured = [remedy for remedy in finding.remedies if remedy.cured]
    assert "clamp_min" in cured[0].text
    assert_same(found, train(guilty=True, policy=Policy(replay=False))[1])


def test_a_healthy_scale_is_left_alone() -> None:
    guard, found = train(guilty=False)
    assert not guard.findings
    assert_same(found, train(guilty=False, policy=Policy(replay=False))[1])
