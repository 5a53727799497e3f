"""Gradients that one optimizer's loss leaves for another optimizer, and those that belong there."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headway.core.findings import Finding
from headway.preflight.runner import run_check


def found(step: Callable[..., None]) -> list[Finding]:
    gc.collect()

    def work() -> None:
        torch.manual_seed(0)
        behind = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
        front = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
        opt_b = torch.optim.Adam(behind.parameters(), 1e-3)
        opt_f = torch.optim.Adam(front.parameters(), 1e-3)
        for number in range(6):
            step(number, behind, front, opt_b, opt_f)

    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == "HD206"]


def gan(number: int, generator: nn.Module, critic: nn.Module, opt_g: Any, opt_d: Any) -> None:
    z = torch.randn(8, 3)
    critic(generator(z)).mean().backward()
    opt_g.step()
    opt_g.zero_grad()
    (critic(torch.randn(8, 4)) - critic(generator(z).detach())).mean().backward()
    opt_d.step()
    opt_d.zero_grad()


def cleared(number: int, generator: nn.Module, critic: nn.Module, opt_g: Any, opt_d: Any) -> None:
    z = torch.randn(8, 3)
    opt_g.zero_grad()
    critic(generator(z)).mean().backward()
    opt_g.step()
    opt_d.zero_grad()
    (critic(torch.randn(8, 4)) - critic(generator(z).detach())).mean().backward()
    opt_d.step()


def heads(number: int, encoder: nn.Module, head: nn.Module, opt_e: Any, opt_h: Any) -> None:
    """The encoder collects the gradients of two losses."""
    opt_e.zero_grad()
    opt_h.zero_grad()
    x = torch.randn(8, 3)
    head(encoder(x)).pow(2).mean().backward()
    opt_h.step()
    F.mse_loss(encoder(x), torch.ones(8, 4)).backward()
    opt_e.step()


def slower(number: int, encoder: nn.Module, head: nn.Module, opt_e: Any, opt_h: Any) -> None:
    """The head steps after every second batch, and collects gradients meanwhile."""
    head(encoder(torch.randn(8, 3))).pow(2).mean().backward()
    opt_e.step()
    opt_e.zero_grad()
    if number % 2:
        opt_h.step()
        opt_h.zero_grad()


def joint(number: int, encoder: nn.Module, head: nn.Module, opt_e: Any, opt_h: Any) -> None:
    head(encoder(torch.randn(8, 3))).pow(2).mean().backward()
    for optimizer in (opt_e, opt_h):
        optimizer.step()
        optimizer.zero_grad()


def test_the_loss_of_a_generator_leaves_gradients_in_the_discriminator() -> None:
    [finding] = found(gan)
    assert "includes gradients of another loss" in finding.message
    assert (finding.where.file or "").endswith("test_leftover_gradients.py")


@pytest.mark.parametrize("step", [cleared, heads, slower, joint])
def test_gradients_that_belong_to_the_step(step: Any) -> None:
    assert not found(step)


def test_with_several_optimizers_the_line_is_that_of_the_one_that_is_not_cleared() -> None:
    def work() -> None:
        torch.manual_seed(0)
        teacher, student = nn.Linear(4, 1), nn.Linear(4, 1)
        first = torch.optim.Adam(teacher.parameters())
        second = torch.optim.Adam(student.parameters())
        for _ in range(8):
            x = torch.randn(8, 4)
            first.zero_grad()
            (teacher(x) - x[:, :1]).square().mean().backward()
            first.step()
            (student(x) - x[:, :1]).square().mean().backward()
            second.step()

    checked = run_check(work, max_steps=None)
    [finding] = [item for item in checked.report.findings if item.code == "HD206"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "second.step()" in lines[(finding.where.line or 1) - 1]
