"""Device mismatches, with the device that every machine has beside its own: `meta`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.preflight.runner import CheckResult, run_check


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


def train(model: nn.Module, labels: str = "cpu", inputs: str = "cpu") -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x, y = torch.randn(6, 8, device=inputs), torch.zeros(6, dtype=torch.long, device=labels)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def net(device: str = "cpu") -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)


def found(checked: CheckResult) -> Any:
    [finding] = [item for item in checked.report.findings if item.code == "HD901"]
    assert checked.report.causes[0].code == "HD901"
    return finding


def test_labels_elsewhere() -> None:
    checked = run_check(lambda: train(net(), labels="meta"))
    finding = found(checked)
    assert finding.where.op == "cross_entropy"
    assert finding.where.function == "train"
    assert "argument 2 on meta" in finding.message
    assert checked.error is not None


def test_half_of_the_model_elsewhere() -> None:
    def work() -> None:
        model = net()
        model[2].to("meta")
        train(model)

    finding = found(run_check(work))
    assert finding.where.module == "2"
    assert "2.weight on meta" in finding.message


def test_a_weight_without_data_that_does_not_raise() -> None:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(1, 3, 8)
            self.conv.to("meta")
            self.head = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x[:, None]).flatten(1))

    assert found(run_check(lambda: train(Conv()))).where.op == "conv1d"


def test_moments_elsewhere() -> None:
    def work() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
            if step == 1:
                for state in optimizer.state.values():
                    state["exp_avg"] = state["exp_avg"].to("meta")

    found(run_check(work, max_steps=4))


@pytest.mark.parametrize("message", ["some shapes differ", "same device please"])
def test_other_errors_are_others(message: str) -> None:
    def work() -> None:
        train(net())
        raise RuntimeError(message)

    checked = run_check(work, max_steps=None)
    assert not [item for item in checked.report.findings if item.code == "HD901"]


def test_a_healthy_run_on_the_host() -> None:
    assert not run_check(lambda: train(net())).report.findings
