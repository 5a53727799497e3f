"""A run whose updates are tried ends in the very same numbers as one that nobody watched."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.healthy_lookalikes import TRAININGS, Run
from torch import Tensor, nn

from headway.core.findings import Severity
from headway.preflight.observers.optimizer.optimizer_setup import OptimizerSettings
from headway.preflight.runner import run_check
from headway.preflight.trial.update_trials import UpdateTrials

pytestmark = pytest.mark.slow  # whole trainings, each watched from end to end

OURS = ("HD209", "HD403", "HD404", "HD411", "HD412", "HD413")
STEPS = 14


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.rnn = nn.GRU(4, 6, batch_first=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu_(self.norm(self.conv(x.unsqueeze(1))))
        h, _ = self.rnn(h.transpose(1, 2))
        out: Tensor = self.head(self.drop(h[:, -1]))
        return out


def training(kept: dict[str, Any], *, style: str) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(3)
        np.random.seed(3)
        model = Net()
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        if style == "sgd":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=style == "scaler")
        x, y = torch.randn(96, 8), torch.randint(0, 3, (96,))
        losses = []
        for _ in range(STEPS):
            for _ in range(3 if style == "accumulation" else 1):
                pick = torch.randint(0, 96, (16,))
                cast = torch.autocast("cpu", dtype=torch.bfloat16)
                with cast if style in ("bf16", "scaler") else nullcontext():
                    loss = F.cross_entropy(model(x[pick]), y[pick])
                losses.append(loss.item())
                scaler.scale(loss / 3 if style == "accumulation" else loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(float(np.random.rand()))
        kept["losses"] = losses
        kept["state"] = {name: value.clone() for name, value in model.state_dict().items()}
        kept["moments"] = [
            {key: value for key, value in state.items() if isinstance(value, Tensor)}
            for state in optimizer.state.values()
        ]
        kept["versions"] = [parameter._version for parameter in model.parameters()]
        kept["random"] = torch.get_rng_state()

    return work


@pytest.mark.parametrize("style", ["plain", "sgd", "accumulation", "bf16", "scaler"])
def test_bit_by_bit(style: str) -> None:
    alone: dict[str, Any] = {}
    watched: dict[str, Any] = {}
    training(alone, style=style)()
    tried: list[int] = []
    done = run_check(
        training(watched, style=style),
        max_steps=None,
        observers=[_telling(tried), OptimizerSettings],
    )
    assert done.error is None
    assert len(tried) >= 5, "no update was tried"
    assert alone["losses"] == watched["losses"]
    assert alone["versions"] == watched["versions"]
    assert torch.equal(alone["random"], watched["random"])
    for name, value in alone["state"].items():
        assert torch.equal(value, watched["state"][name]), name
    for one, other in zip(alone["moments"], watched["moments"], strict=True):
        assert all(torch.equal(value, other[key]) for key, value in one.items())
    assert torch._C._len_torch_dispatch_stack() == 0
    assert "watch_functions" not in torch.autograd.Function.apply.__qualname__


def _telling(tried: list[int]) -> type[UpdateTrials]:
    class Telling(UpdateTrials):
        def _report(self, watched: Any, *rest: Any) -> None:
            tried.append(watched.steps)
            super()._report(watched, *rest)

    return Telling


@pytest.mark.parametrize("name", TRAININGS)
def test_healthy_lookalikes_are_quiet_and_unchanged(name: str) -> None:
    alone = Run(0, watched=False)
    alone.make(TRAININGS[name])
    runs: list[Run] = []

    def work() -> None:
        runs.append(Run(0, watched=False))
        runs[0].make(TRAININGS[name])

    done = run_check(work, max_steps=25, observers=[UpdateTrials, OptimizerSettings])
    assert done.error is None
    made = runs[0].losses
    assert made == alone.losses[: len(made)]
    ours = [item for item in done.report.findings if item.code in OURS]
    assert [item.message for item in ours if item.severity >= Severity.WARNING] == []
