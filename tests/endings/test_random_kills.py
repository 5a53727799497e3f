"""Processes that are killed at random moments are described rightly afterwards."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.guard.guard import Guard
from headway.postmortem.diagnose import diagnose

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def train(run_dir: Path, progress: Any) -> None:
    """Train forever; `progress` holds the number of steps that were begun."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = Guard(model, optimizer, run_dir=run_dir)
    while True:
        for batch in guard([torch.randn(8, 16) for _ in range(50)]):
            model(batch).square().mean().backward()
            progress.value += 1
            optimizer.step()
            optimizer.zero_grad()


def kill_one(run_dir: Path, chance: random.Random) -> list[str]:
    """Kill a training at a random moment; what is wrong with its description."""
    context = multiprocessing.get_context("fork")
    progress = context.Value("q", 0, lock=False)
    child = context.Process(target=train, args=(run_dir, progress), daemon=True)
    child.start()
    deadline = time.monotonic() + 120
    while not progress.value and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(chance.random())
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    report = diagnose(run_dir)
    found = [item for item in report.findings if item.code == "HD913"]
    if report.verdict != "failed" or len(found) != 1:
        return [f"verdict {report.verdict}, findings {[item.code for item in report.findings]}"]
    step, made = found[0].step, progress.value
    # The test counts just before the guard does: a kill may fall between the two.
    if step is None or not made - 2 <= step <= made:
        return [f"step {step}, but {made} steps were begun"]
    return []


@pytest.mark.slow
def test_a_few_kills(tmp_path: Path) -> None:
    chance = random.Random(1)
    wrong = [kill_one(tmp_path / str(number), chance) for number in range(5)]
    assert wrong == [[]] * 5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_hundred_kills(tmp_path: Path) -> None:
    chance = random.Random(0)
    wrong = [kill_one(tmp_path / str(number), chance) for number in range(100)]
    assert [item for item in wrong if item] == []
