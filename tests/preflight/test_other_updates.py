"""The line of a bad number where steps are made in other ways: a GradScaler that skips them,
`torch.autograd.grad`, updates by hand, hooks after the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.config import Settings
from headway.core.findings import Finding
from headway.guard.script.guarded_run import run_guarded
from headway.preflight.runner import run_check
from headway.report import Report

Run = Callable[[Callable[[], None]], Report]


def check(work: Callable[[], None]) -> Report:
    return run_check(work, max_steps=6).report


def guard(work: Callable[[], None]) -> Report:
    return run_guarded(work, settings=Settings()).report


def find(report: Report, code: str) -> Finding:
    return next(item for item in report.findings if item.code == code)


def line_after(function: Callable[..., Any], lines: int) -> int:
    return function.__code__.co_firstlineno + lines


def cured(found: Finding) -> list[str]:
    return [remedy.text for remedy in found.remedies if remedy.tested and remedy.cured]


def scaled(shift: float, scale: float) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(7):
        x = torch.randn(8, 4) * torch.tensor([1.0] * 7 + [shift])[:, None]
        optimizer.zero_grad()
        loss = net(x).square().sum(dim=1).sqrt().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("run", [check, guard])
def test_a_skip_that_no_scale_would_avoid(run: Run) -> None:
    found = find(run(lambda: scaled(0.0, 1024.0)), "HD201")
    assert (found.where.line, found.where.op) == (line_after(scaled, 8), "sqrt")
    assert any("+ 1e-08" in text for text in cured(found))


@pytest.mark.parametrize("run", [check, guard])
def test_a_scaler_that_searches_for_its_scale(run: Run) -> None:
    report = run(lambda: scaled(1.0, 3e38))
    assert "HD201" not in {item.code for item in report.findings}


@pytest.mark.parametrize("run", [check, guard])
def test_gradients_without_backward(run: Run) -> None:
    def chance(net: nn.Module, x: Tensor) -> Tensor:
        return torch.log(net(x).sigmoid()).mean()

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        rows = torch.rand(6, 8, 4)
        rows[3, 2] = -1000.0 * net.weight.detach()[0].sign()
        for x in rows:
            weights = list(net.parameters())
            for weight, gradient in zip(
                weights, torch.autograd.grad(chance(net, x), weights), strict=True
            ):
                weight.grad = gradient
            optimizer.step()

    found = find(run(work), "HD201")
    assert (found.where.line, found.where.op) == (line_after(chance, 1), "log")
    assert any("clamp_min" in text for text in cured(found))


def test_updates_by_hand() -> None:
    weight = torch.ones(3, requires_grad=True)

    def work() -> None:
        for number in range(6):
            loss = (weight * (3e38 if number == 3 else 1.0) * 4.0).square().mean()
            loss.backward()
            with torch.no_grad():
                assert weight.grad is not None
                weight.sub_(weight.grad.clamp(-1, 1).nan_to_num(), alpha=1e-3)
                weight.grad = None

    found = find(check(work), "HD101")
    assert (found.where.line, found.where.op) == (line_after(work, 2), "mul")


def hooked(report_of: Run, factor: float) -> tuple[Report, int]:
    def project(optimizer: Any, args: Any, kwargs: Any) -> None:
        weight = optimizer.param_groups[0]["params"][0]
        calls.append(factor)
        with torch.no_grad():
            weight.div_((weight * (factor if len(calls) > 3 else 1.0)).norm())

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        optimizer.register_step_post_hook(project)
        optimizers.append(optimizer)
        for x in torch.rand(6, 8, 4):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    calls: list[float] = []
    optimizers: list[Any] = []
    report = report_of(work)
    assert [*optimizers[0]._optimizer_step_post_hooks.values()] == [project]
    return report, line_after(project, 4)


@pytest.mark.parametrize("run", [check, guard])
def test_a_hook_after_the_step_makes_weights_bad(run: Run) -> None:
    report, line = hooked(run, 0.0)
    found = find(report, "HD301")
    assert (found.where.line, found.where.op) == (line, "div")


@pytest.mark.parametrize("run", [check, guard])
def test_a_healthy_hook_after_the_step(run: Run) -> None:
    report, _ = hooked(run, 1.0)
    assert not {"HD101", "HD201", "HD301"} & {item.code for item in report.findings}
