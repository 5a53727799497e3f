"""HD405: a plateau that waits for the wrong direction, and a rate that is 0 from the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.observer_trainings import checked, codes, fit, net
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

LINES = Path(__file__).read_text().splitlines()


def plateau(mode: str, values: list[float], expression: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scheduler = ReduceLROnPlateau(optimizer, mode=mode, patience=5)
    for value in values:
        fit(model, optimizer, 2)
        val_acc = val_loss = value
        if expression == "accuracy":
            scheduler.step(val_acc)
        elif expression == "loss":
            scheduler.step(val_loss)
        else:
            scheduler.step(-val_acc)


def test_a_plateau_waits_for_the_accuracy_to_fall() -> None:
    done = checked(lambda: plateau("min", [0.2, 0.4, 0.6, 0.7], "accuracy"), 20)
    [finding] = [item for item in done.report.findings if item.code == "HD405"]
    assert "improved from 0.2 to 0.6" in finding.message
    assert "ReduceLROnPlateau" in LINES[(finding.where.line or 1) - 1]


def test_a_plateau_waits_for_the_loss_to_grow() -> None:
    assert "HD405" in codes(lambda: plateau("max", [2.0, 1.0, 0.6, 0.4], "loss"), 20)


@pytest.mark.parametrize(
    ("mode", "values", "expression"),
    [
        ("max", [0.2, 0.4, 0.6, 0.7], "accuracy"),
        ("min", [2.0, 1.0, 0.6, 0.4], "loss"),
        ("min", [0.5, 0.8, 0.9, 1.1], "loss"),
        ("min", [0.2, 0.4, 0.6, 0.7], "negative"),
    ],
)
def test_plateaus_that_are_right(mode: str, values: list[float], expression: str) -> None:
    assert "HD405" not in codes(lambda: plateau(mode, values, expression), 20)


def warmed(rate: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rates = {"whole": lambda step: step // 100, "share": lambda step: step / 100}
    scheduler = LambdaLR(optimizer, rates[rate])
    fit(model, optimizer, 30, each=lambda _: scheduler.step())


def test_a_rate_of_zero_from_the_start() -> None:
    done = checked(lambda: warmed("whole"), 40)
    [finding] = [item for item in done.report.findings if item.code == "HD405"]
    assert "exactly 0 in all of the first 20 steps" in finding.message
    assert finding.where.function == "warmed"


def test_a_warm_up() -> None:
    assert "HD405" not in codes(lambda: warmed("share"), 40)
