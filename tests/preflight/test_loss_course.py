"""How a loss goes on: sums that take huge steps, swings, and stalls."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from support.loss_trainings import codes, net
from torch import nn

from headway.core.findings import Severity
from headway.preflight.runner import CheckResult, run_check

pytestmark = pytest.mark.slow  # whole trainings, each watched from end to end


def fit(
    *,
    rate: float,
    reduction: str = "mean",
    by_hand: str = "",
    steps: int = 5,
    adam: bool = False,
) -> CheckResult:
    def work() -> None:
        torch.manual_seed(0)
        model = net(1)
        kind = torch.optim.Adam if adam else torch.optim.SGD
        optimizer = kind(model.parameters(), lr=rate)
        for _ in range(steps):
            x = torch.randn(64, 6)
            error = model(x).squeeze(1) - x.sum(1)
            if by_hand == "sum":
                loss = error.pow(2).sum()
            elif by_hand == "dot":
                loss = error @ error
            elif by_hand == "mask":
                loss = torch.sum(error[x[:, 0] > -1] ** 2)
            else:
                loss = F.mse_loss(model(x).squeeze(1), x.sum(1), reduction=reduction)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    gc.collect()  # what other tests have left behind would be found, too
    return run_check(work, max_steps=steps)


@pytest.mark.parametrize(
    ("reduction", "weight", "expected"),
    [("sum", 1.0, ["HD116"]), ("mean", 1.0, []), ("sum", 0.1, [])],
)
def test_a_sum_beside_a_mean(reduction: str, weight: float, expected: list[str]) -> None:
    def work() -> None:
        torch.manual_seed(0)
        trunk, head, box = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        parameters = [p for part in (trunk, head, box) for p in part.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        for _ in range(6):
            x = torch.randn(16, 8)
            hidden = trunk(x).relu()
            classes = F.cross_entropy(head(hidden), x[:, :4].argmax(1), reduction=reduction)
            loss = classes + weight * F.smooth_l1_loss(box(hidden), x[:, 4:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    gc.collect()
    found = run_check(work, max_steps=6).report.findings
    assert [item.code for item in found if item.severity >= Severity.WARNING] == expected


def test_a_sum_with_the_rate_of_a_mean() -> None:
    for by_hand in ("", "sum", "dot", "mask"):
        checked = fit(rate=0.05, reduction="sum", by_hand=by_hand)
        assert checked.report.causes[0].code == "HD116", checked.report.findings
        assert checked.report.causes[0].root.where.line is not None


def test_a_sum_with_its_own_rate_or_with_adam_is_worth_knowing_only() -> None:
    assert codes(fit(rate=1e-5, reduction="sum")) == set()
    assert codes(fit(rate=1e-3, reduction="sum", adam=True)) == set()
    assert codes(fit(rate=0.05)) == set()


def test_labels_that_belong_to_other_samples() -> None:
    def run(*, apart: bool) -> CheckResult:
        def work() -> None:
            torch.manual_seed(0)
            x = torch.randn(3000, 6)
            y = x[:, :4].argmax(1)
            y = y[torch.randperm(3000)] if apart else y
            model = net(4)
            optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
            for _ in range(150):
                pick = torch.randint(0, 3000, (64,))
                loss = F.cross_entropy(model(x[pick]), y[pick])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        gc.collect()
        return run_check(work, max_steps=150)

    assert "HD105" in codes(run(apart=True))
    assert codes(run(apart=False)) == set()


def test_a_rate_that_overshoots_on_every_step() -> None:
    def run(rate: float) -> CheckResult:
        def work() -> None:
            torch.manual_seed(0)
            x = torch.rand(64, 1) + 0.5
            model = nn.Linear(1, 1, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            for _ in range(60):
                loss = F.l1_loss(model(x), 2 * x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        gc.collect()
        return run_check(work, max_steps=60)

    assert "HD115" in codes(run(6.0))
    assert "HD115" not in codes(run(0.05))


def test_two_trainings_of_one_script_are_two_series() -> None:
    """A teacher ends at a low loss; its student begins at a high one, and learns slowly."""

    def train(model: nn.Module, targets: torch.Tensor, x: torch.Tensor, rate: float) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for step in range(120):
            rows = slice(step % 8 * 32, step % 8 * 32 + 32)
            optimizer.zero_grad()
            F.mse_loss(model(x[rows]), targets[rows]).backward()
            optimizer.step()

    def work() -> None:
        torch.manual_seed(0)
        x = torch.randn(256, 6)
        teacher = net(1)
        train(teacher, x.sum(1, keepdim=True), x, 0.02)
        with torch.no_grad():
            targets = 30 * teacher(x)
        train(net(1), targets, x, 1e-6)

    gc.collect()
    report = run_check(work, max_steps=None).report
    series = {"HD103", "HD104", "HD202", "HD207", "HD406"}
    assert not series & {item.code for item in report.findings}
