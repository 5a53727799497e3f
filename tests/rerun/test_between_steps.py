"""Weights that the user's own code between two steps makes bad, once: the line that did it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import assert_same, state_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway import Guard, Policy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

Loop = Callable[[nn.Linear, Any, list[Any]], None]
STEPS, BAD = 8, 4


def project(net: nn.Linear, factor: float) -> None:
    with torch.no_grad():
        net.weight.mul_(factor)
        net.weight.div_(net.weight.norm())  # made here


def train_step(net: nn.Linear, optimizer: Any, x: Tensor) -> None:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


def counted(net: nn.Linear, optimizer: Any, seen: list[Any]) -> None:
    for step in range(STEPS):
        train_step(net, optimizer, torch.rand(4, 3))
        seen.append(step)
        project(net, 0.0 if step == BAD else 1.0)


def from_a_loader(net: nn.Linear, optimizer: Any, seen: list[Any]) -> None:
    rows = torch.rand(4 * STEPS, 3)
    for number, (x,) in enumerate(DataLoader(TensorDataset(rows), 4)):
        train_step(net, optimizer, x)
        seen.append(number)
        project(net, 0.0 if number >= BAD else 1.0)


def after_an_epoch(net: nn.Linear, optimizer: Any, seen: list[Any]) -> None:
    def train_epoch(epoch: int) -> None:
        for (x,) in DataLoader(TensorDataset(torch.rand(12, 3)), 4):
            train_step(net, optimizer, x)
            seen.append(epoch)
        if epoch > 0:
            project(net, 0.0)

    for epoch in range(3):
        train_epoch(epoch)


class Average:
    """Counts in a tensor."""

    def __init__(self) -> None:
        self.age = torch.zeros(())

    def after(self, net: nn.Linear) -> None:
        self.age += 1
        project(net, float(self.age != BAD))


def asynchronous(net: nn.Linear, optimizer: Any, seen: list[Any]) -> None:
    async def batches() -> AsyncIterator[Tensor]:
        for _ in range(STEPS):
            await asyncio.sleep(0)
            yield torch.rand(4, 3)

    async def main() -> None:
        average = Average()
        async for x in batches():
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            average.after(net)

    asyncio.run(main())


def harmless(net: nn.Linear, optimizer: Any, seen: list[Any]) -> None:
    """Something outside of the loop's code makes the weights bad."""
    net.register_forward_hook(lambda *_: seen.append(0))
    for step in range(STEPS):
        if len(seen) == BAD:
            net.weight.data.fill_(float("nan"))
        train_step(net, optimizer, torch.rand(4, 3))
        project(net, 1.0 + 0 * step)


def run(loop: Loop, **options: Any) -> tuple[Guard, dict[str, Any]]:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    seen: list[Any] = []
    with Guard(net, optimizer, **options) as guard:
        loop(net, optimizer, seen)
    return guard, {**state_of(net, optimizer), "seen": repr(seen), "drawn": torch.rand(1).item()}


LOOPS = [counted, from_a_loader, after_an_epoch, asynchronous]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_line_is_named_and_the_training_goes_on_as_without(loop: Loop) -> None:
    guard, found = run(loop)
    made = next(
        number
        for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line.endswith("# made here")
    )
    where = next(item.where for item in guard.findings if item.code == "HD301")
    assert (Path(str(where.file)).name, where.line) == (Path(__file__).name, made)
    assert_same(found, run(loop, policy=Policy(replay=False))[1])


def test_the_remedy_is_tried_on_the_code_between_the_steps() -> None:
    guard, _ = run(counted)
    found = next(item for item in guard.findings if item.code == "HD301")
    assert [(item.tested, item.cured) for item in found.remedies[:1]] == [(True, True)]
    assert "net.weight.div_(net.weight.norm().clamp_min(1e-06))" in found.remedies[0].text
    assert found.remedies[0].edits


@pytest.mark.parametrize("loop", [harmless])
def test_nothing_is_claimed_if_the_code_does_not_do_it_again(loop: Loop) -> None:
    guard, _ = run(loop)
    finding = next(item for item in guard.findings if item.code == "HD301")
    assert finding.where.line is None
