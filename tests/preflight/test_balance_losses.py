"""Balancing losses of routers: those that can be had for nothing, and those that balance."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn

from headway.core.findings import Severity
from headway.preflight.runner import run_check


class Router(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 1) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.gate(x)
        weights = scores.softmax(1) if self.how == "softmax" else scores.sigmoid()
        best, chosen = weights.max(dim=1)
        counts = torch.zeros(4).index_add(0, chosen, torch.ones(len(x))) / len(x)
        outputs = torch.stack([expert(x).squeeze(1) for expert in self.experts], 1)
        picked = outputs.gather(1, chosen[:, None]).squeeze(1)
        return picked * best / weights.sum(1), 4 * torch.dot(counts, weights.mean(0))


def loud(how: str) -> list[str]:
    def work() -> None:
        torch.manual_seed(0)
        model = Router(how)
        with torch.no_grad():
            model.gate.bias[0] += 1.5
        optimizer = torch.optim.Adam(model.parameters(), 3e-2)
        for _ in range(100):
            x = torch.randn(64, 6)
            y = torch.where(x[:, 0] > 0, x[:, 1], -x[:, 2])
            out, balance = model(x)
            loss = (out - y).pow(2).mean() + 0.5 * balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    return [item.code for item in checked.report.findings if item.severity >= Severity.WARNING]


def test_scores_that_shrink_are_no_balance() -> None:
    assert "HD106" in loud("sigmoid")


def test_scores_that_sum_to_one_are() -> None:
    assert loud("softmax") == []
