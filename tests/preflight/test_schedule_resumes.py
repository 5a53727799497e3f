"""Schedules after a resume: counted twice, started again, and rightly restored."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, SequentialLR

from headway.core.findings import Finding
from headway.preflight.runner import run_check


def schedule_of(kind: str, optimizer: torch.optim.Optimizer) -> Any:
    if kind == "lambda":
        return LambdaLR(optimizer, lambda epoch: 0.7**epoch)
    if kind == "slow":
        return LambdaLR(optimizer, lambda epoch: 0.95**epoch)
    if kind == "sequence":
        parts = [ExponentialLR(optimizer, 0.9), CosineAnnealingLR(optimizer, 20)]
        return SequentialLR(optimizer, parts, milestones=[3])
    return ExponentialLR(optimizer, 0.7)


def begin(kind: str) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return model, optimizer, schedule_of(kind, optimizer)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
    for _ in range(4):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        schedule.step()


def found(file: Path, how: str, kind: str = "exponential", code: str = "HD417") -> list[Finding]:
    gc.collect()
    before = begin(kind)
    train(*before)
    names = ("model", "optimizer", "schedule")
    saved = {name: item.state_dict() for name, item in zip(names, before, strict=True)}
    if "unsaved" in how:
        del saved["schedule"]
    torch.save(saved, file)
    del before

    def resume() -> None:
        model, optimizer, schedule = begin(kind)
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if "load" in how:
            schedule.load_state_dict(state["schedule"])
        if how == "new":
            schedule = schedule_of(kind, optimizer)
        if "advance" in how:
            for _ in range(4):
                schedule.step()
        train(model, optimizer, schedule)

    work: Callable[[], None] = resume
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == code]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("load and advance", "was loaded at position 4 and then advanced 4 times"),
        ("advance", "advanced 4 times after the optimizer's state was loaded"),
        ("new", "restarts at position 0"),
        ("unsaved", "restarts at position 0, where its rate is 0.01, although"),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_a_schedule_that_stands_elsewhere(tmp_path: Path, how: str, words: str) -> None:
    [finding] = found(tmp_path / "checkpoint.pt", how)
    assert words in finding.message
    assert (finding.where.file or "").endswith("test_schedule_resumes.py")


@pytest.mark.parametrize(
    ("how", "kind"),
    [("load", "exponential"), ("load", "lambda"), ("advance", "lambda"), ("load", "sequence")],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedules_that_are_where_they_were(tmp_path: Path, how: str, kind: str) -> None:
    assert not found(tmp_path / "checkpoint.pt", how, kind)


def test_a_schedule_that_begins_again_needs_no_large_jump(tmp_path: Path) -> None:
    [finding] = found(tmp_path / "checkpoint.pt", "new", "slow", code="HD406")
    assert "1.23 times the" in finding.message
    assert found(tmp_path / "checkpoint.pt", "load", "slow", code="HD406") == []


def test_a_rate_that_the_script_sets_after_loading(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    before = begin("exponential")
    train(*before)
    torch.save({"model": before[0].state_dict(), "optimizer": before[1].state_dict()}, file)

    def resume() -> None:
        model, optimizer, schedule = begin("exponential")
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        optimizer.param_groups[0]["lr"] = 0.003
        train(model, optimizer, schedule)

    assert "HD417" not in {item.code for item in run_check(resume).report.findings}
