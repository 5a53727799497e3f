"""On CUDA a bad step is known one step late: it is looked into before the weights move on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import assert_same, state_of
from torch import Tensor, nn
from torch.nn import functional as F

from headway import Guard, Policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # A scaler that skips the very first step lets the schedule go first, guard or not.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

BAD, STEPS, SAMPLE = 12, 20, 3


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 32)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        strength = x.abs().sum(dim=1, keepdim=True)
        hidden = self.drop(torch.relu(self.norm(self.inner(x))))
        return self.head(hidden) * torch.log(strength)  # born here


BORN = next(
    number
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    if line.endswith("# born here")
)


def data(bad: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    found = [
        (torch.randn(8, 6, generator=generator), torch.randn(8, 1, generator=generator))
        for _ in range(STEPS)
    ]
    found[bad][0][SAMPLE] = 0.0
    return found


def go(*, replay: bool, dtype: torch.dtype | None, fused: bool, bad: int) -> Any:
    torch.manual_seed(0)
    model = Reader().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16, init_scale=1024.0)
    seen: list[int] = []
    with Guard(model, optimizer, schedule, scaler, policy=Policy(replay=replay)) as guard:
        for i, (x, y) in enumerate(guard(data(bad))):
            x, y = x.cuda(), y.cuda()
            with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            seen.append(i)
        explanations = guard.explanations
        held = [action.step for action in guard.actions]
    state = {
        **state_of(model, optimizer),
        "schedule": schedule.state_dict(),
        "scaler": scaler.state_dict(),
        "seen": seen,
        "held": held,
        "random": torch.rand(2),
        "random on the device": torch.rand(2, device="cuda"),
    }
    return state, explanations


@pytest.mark.parametrize("bad", [0, BAD, STEPS - 2, STEPS - 1])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
def test_the_line_is_named_and_the_run_as_if_merely_skipped(
    dtype: torch.dtype | None, fused: bool, bad: int
) -> None:
    told, explanations = go(replay=True, dtype=dtype, fused=fused, bad=bad)
    silent, none = go(replay=False, dtype=dtype, fused=fused, bad=bad)
    assert none == []
    assert_same(told, silent)
    (explanation,) = explanations
    origin = explanation.origin
    assert explanation.step == bad
    assert origin is not None, explanation
    assert origin.place is not None
    assert (origin.place.line, origin.op, origin.rows) == (BORN, "log", (SAMPLE,))
    assert explanation.cure is not None


def test_no_wait_for_the_device_in_healthy_steps() -> None:
    torch.manual_seed(0)
    model = Reader().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    batches = [(x.cuda(), y.cuda()) for x, y in data(BAD)]
    with Guard(model, optimizer) as guard:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for x, y in guard(batches):
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode(0)
        assert [item.step for item in guard.explanations] == [BAD]
