"""The line of a bad number, whatever the loop looks like."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from headway.config import Settings
from headway.core.findings import Finding
from headway.guard.script.guarded_run import run_guarded
from headway.guard.script.launcher import ScriptLauncher
from headway.policy import Policy
from headway.preflight.runner import run_check
from headway.report import Report
from headway.torch_adapters.modes import LastingModes


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


class Net(nn.Module):
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        h = self.head(torch.tanh(self.inner(x)))
        return torch.log(h + self.shift)  # the line


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4)
    return x, x.sum(dim=1, keepdim=True)


def loop_for(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x, y = batch()
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_while(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    done = 0
    source = iter([batch() for _ in range(steps)])
    while done < steps:
        x, y = next(source)
        optimizer.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        done += 1


def loop_closure(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x, y = batch()

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


LOOPS = [loop_for, loop_while, loop_closure]


def train(loop: Callable[..., None], shift: float, steps: int = 3) -> nn.Module:
    torch.manual_seed(0)
    net = Net(shift)
    loop(net, torch.optim.SGD(net.parameters(), lr=1e-2), steps)
    return net


def line_of(report: Report) -> tuple[Any, Any]:
    where = report.causes[0].root.where
    return where.line, where.op


@pytest.mark.parametrize("loop", LOOPS)
def test_the_line_is_named(loop: Callable[..., None]) -> None:
    report = run_check(lambda: train(loop, -2.0), max_steps=3).report
    source = Net.forward.__code__.co_firstlineno + 2
    assert line_of(report) == (source, "log")


def test_data_that_came_bad_is_blamed() -> None:
    def work() -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        data = torch.randn(64, 4)
        data[::3, 1] = float("nan")
        for _ in range(3):
            x = data[torch.randint(0, 64, (16,))]
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()

    report = run_check(work, max_steps=3).report
    assert report.causes[0].code == "HD501"
    assert report.causes[0].root.where.line == work.__code__.co_firstlineno + 5  # not its reader


@pytest.mark.parametrize("loop", LOOPS)
def test_the_run_stays_as_it_is(loop: Callable[..., None]) -> None:
    """One step is bad, the next is watched and fine."""
    plain, seen = [], []

    def work(kept: list[Any]) -> None:
        torch.manual_seed(0)
        net = Net(5.0)
        seen_steps = 0

        def poison(module: nn.Module, args: Any) -> Any:
            nonlocal seen_steps
            seen_steps += 1
            return (args[0] * float("nan"),) if seen_steps == 2 else None

        net.register_forward_pre_hook(poison)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)

        def hold(inner: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if seen_steps == 2:  # what the guard does by itself
                for p in net.parameters():
                    p.grad = None

        optimizer.register_step_pre_hook(hold) if kept is plain and loop is not loop_closure else 0
        loop(net, optimizer, 4)
        kept.append(copy.deepcopy(net.state_dict()))
        kept.append(torch.get_rng_state())

    if loop is loop_closure:
        pytest.skip("held inside of the step: no plain run to compare with")
    work(plain)
    run_check(lambda: work(seen), max_steps=None)
    assert torch.equal(plain[1], seen[1])
    for name, value in plain[0].items():
        assert torch.equal(value, seen[0][name])


def test_torch_is_as_before() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    run_check(lambda: train(loop_for, -2.0, 2), max_steps=None)
    assert not _get_current_dispatch_mode_stack()


class Framework:
    """Draws the batches and steps by a closure, each in a function of its own."""

    def fit(self, rows: Tensor) -> None:
        self.net = Net(shift=-5.0)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-2)
        for (self.x,) in DataLoader(TensorDataset(rows), 8):
            self.optimizer.step(self.closure)

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.net(self.x).mean()
        loss.backward()
        return loss


def test_a_line_that_was_told_is_not_said_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptLauncher(settings=Settings(), policy=Policy(replay_gap=0)):
        Framework().fit(torch.randn(40, 4))
    assert "why: Log of a negative value" in caplog.text
    assert "could not be run again" not in caplog.text


# Loops of any shape, and what happens outside of the step.


def rows_of(size: int = 48) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(size, 4)
    return x, x.sum(dim=1, keepdim=True)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    optimizer.zero_grad()
    loss = ((net(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def loop_comprehension(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    loader = DataLoader(TensorDataset(*rows_of(8 * steps)), 8)
    [step(net, optimizer, *each) for each in loader]


def loop_recursion(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    if steps:
        step(net, optimizer, *batch())
        loop_recursion(net, optimizer, steps - 1)


def loop_generator(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    def losses() -> Iterator[float]:
        for x, y in zip(*(item.split(8) for item in rows_of(8 * steps)), strict=True):
            yield step(net, optimizer, x, y)

    sum(losses())


@pytest.mark.parametrize("loop", [loop_comprehension, loop_recursion, loop_generator])
def test_the_line_does_not_depend_on_the_loop(loop: Callable[..., None]) -> None:
    report = run_check(lambda: train(loop, -2.0), max_steps=3).report
    source = Net.forward.__code__.co_firstlineno + 2
    assert line_of(report) == (source, "log")
    assert not any("guard(" in remedy.text for item in report.findings for remedy in item.remedies)


def line_after(function: Callable[..., Any], lines: int) -> int:
    return function.__code__.co_firstlineno + lines


def find(report: Report, code: str) -> Finding:
    return next(item for item in report.findings if item.code == code)


def test_weights_that_the_user_makes_bad_between_steps() -> None:
    def project(net: nn.Linear) -> None:
        with torch.no_grad():
            net.weight.div_((net.weight - net.weight).norm())

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        for _ in range(3):
            step(net, optimizer, *batch())
            project(net)

    found = find(run_check(work, max_steps=3).report, "HD301")
    assert (found.where.line, found.where.op) == (line_after(project, 2), "div")


class Rows(Dataset[tuple[Tensor, int]]):
    """One sample is constant, so that its range is 0."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(48, 1, 6, 6)
        self.x[20] = 0.5

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        x = self.x[row] - self.x[row].mean()
        return x / x.abs().max(), row % 2


def skip_bad_losses(workers: int) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for x, y in DataLoader(Rows(), batch_size=8, num_workers=workers):
        loss = nn.functional.cross_entropy(net(x), y)
        if torch.isfinite(loss):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("workers", [0, 1])
def test_statistics_that_a_skipped_batch_has_filled(workers: int) -> None:
    """The user's own check of the loss comes too late for batch normalisation."""
    report = run_check(lambda: skip_bad_losses(workers), max_steps=None).report
    for code in ("HD302", "HD501"):
        found = find(report, code)
        assert (found.where.line, found.where.op) == (line_after(Rows.__getitem__, 2), "div"), code


def test_a_scaler_that_only_shrinks_its_scale() -> None:
    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu")
        x, _ = batch()
        for _ in range(18):
            optimizer.zero_grad()
            out = net(x)
            gap = (out - out.detach()).abs() ** 0.5
            scaler.scale((out**2).mean() + gap.mean()).backward()
            scaler.step(optimizer)
            scaler.update()

    for report in (
        run_check(work, max_steps=18).report,
        run_guarded(work, settings=Settings()).report,
    ):
        found = find(report, "HD313")
        assert (found.where.line, found.where.op) == (line_after(work, 9), "pow")
        assert "HD003" not in {item.code for item in report.findings}  # it was guarded


def test_a_framework_that_passes_no_closure() -> None:
    """Accelerate calls `step(None)`: steps after the first one are traced, too."""

    def train(net: nn.Module, optimizer: torch.optim.Optimizer, left: list[Tensor]) -> None:
        loss = net(left[0]).mean() + left[0].log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(None)
        if left[1:]:  # no loop that could be run again
            train(net, optimizer, left[1:])

    def work() -> None:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        train(net, optimizer, [*torch.ones(3, 8, 4), torch.zeros(8, 4)])

    found = find(run_check(work, max_steps=4).report, "HD101")
    assert (found.where.line, found.where.op) == (line_after(train, 1), "log")


def test_weights_that_are_bad_again_after_a_roll_back_do_not_stop_the_script() -> None:

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)

        def train(x: Tensor) -> None:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            for p in net.parameters():
                p.data.copy_(p.data * (x.new_zeros(1) / x.new_zeros(1)))

        for x in torch.randn(5, 8, 4):
            train(x)

    report = run_guarded(work, settings=Settings()).report
    assert "HD911" not in {item.code for item in report.findings}


def test_targets_that_are_masked_too_late() -> None:
    def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        error = (net(x) - y).square()
        return torch.where(torch.isnan(y), torch.zeros_like(error), error).mean()

    def work() -> None:
        x, y = rows_of()
        y[::5] = float("nan")
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        for each in DataLoader(TensorDataset(x, y), 8):
            optimizer.zero_grad()
            loss_of(net, *each).backward()
            optimizer.step()

    found = find(run_check(work, max_steps=3).report, "HD201")
    assert found.where.line == line_after(loss_of, 1)
    assert "Mask them before it" in found.message


def test_a_healthy_training_leaves_nothing_and_finds_nothing() -> None:
    mask = torch.full((4, 4), float("-inf")).triu(1)

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(4):
            x, _ = batch(4)
            weights = torch.softmax(net(x) + mask, dim=-1)
            optimizer.zero_grad()
            (weights @ x).square().mean().backward()
            optimizer.step()

    report = run_check(work, max_steps=4).report
    assert not [item for item in report.findings if item.code in ("HD101", "HD201", "HD303")]


def test_a_long_check_rests_its_trace_and_wakes_it_after_a_bad_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it rests no op calls it; the bad step itself cannot be run again in this loop."""
    monkeypatch.setattr("headway.rerun.step_tracer.CLOSE_STEPS", 3)
    in_force: list[int] = []

    def work() -> None:
        torch.manual_seed(0)
        net = Net(shift=9.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        data = iter([batch() for _ in range(10)])

        def turn(number: int) -> None:
            in_force.append(LastingModes.count)
            net.shift = 9.0 if number < 6 else -9.0
            x, y = next(data)
            optimizer.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            optimizer.step()

        list(map(turn, range(10)))

    report = run_check(work, max_steps=None).report
    assert in_force[:4] == [1, 1, 1, 1]
    assert in_force[4:7] == [0, 0, 0]
    assert 1 in in_force[7:]
    assert LastingModes.count == 0
    line = Net.forward.__code__.co_firstlineno + 2
    assert any(item.where.line == line for item in report.findings)
