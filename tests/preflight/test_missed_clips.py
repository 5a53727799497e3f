"""Gradient clipping that gets other parameters than the next step moves."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from headway.core.findings import Finding
from headway.preflight.runner import run_check


def found(work: Callable[[], None]) -> list[Finding]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == "HD416"]


def actor_critic(*, right: bool) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
        actor_step = torch.optim.Adam(actor.parameters())
        critic_step = torch.optim.Adam(critic.parameters())
        for _ in range(4):
            x = torch.randn(8, 4)
            value = (critic(x) - x.sum(1, keepdim=True)).square().mean()
            critic_step.zero_grad()
            value.backward()
            clip_grad_norm_(critic.parameters(), 1.0)
            critic_step.step()
            policy = -(actor(x).log_softmax(1)[:, 0] * critic(x)[:, 0].detach()).mean()
            actor_step.zero_grad()
            policy.backward()
            clip_grad_norm_((actor if right else critic).parameters(), 1.0)
            actor_step.step()

    return work


def joint(order: str) -> Callable[[], None]:
    """One backward for two optimizers: c clips the second model, 1 and 2 step."""

    def work() -> None:
        torch.manual_seed(0)
        first, second = nn.Linear(4, 4), nn.Linear(4, 1)
        steps = {
            "1": torch.optim.SGD(first.parameters(), 0.01).step,
            "2": torch.optim.SGD(second.parameters(), 0.01).step,
        }
        for _ in range(4):
            x = torch.randn(8, 4)
            first.zero_grad()
            second.zero_grad()
            (second(first(x).tanh()) - x[:, :1]).square().mean().backward()
            for what in order:
                if what == "c":
                    clip_grad_norm_(second.parameters(), 1.0)
                else:
                    steps[what]()

    return work


def micro_batches() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for at in range(8):
        x = torch.randn(8, 4)
        ((net(x) - x[:, :1]).square().mean() / 2).backward()
        clip_grad_norm_(net.parameters(), 1.0)
        if at % 2:
            optimizer.step()
            optimizer.zero_grad()


def master_copies() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1).to(torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in net.parameters()]
    optimizer = torch.optim.SGD(masters, 0.01)
    for _ in range(4):
        x = torch.randn(8, 4, dtype=torch.bfloat16)
        net.zero_grad()
        (net(x) - x[:, :1]).float().square().mean().backward()
        clip_grad_norm_(net.parameters(), 1.0)
        for master, p in zip(masters, net.parameters(), strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, net.parameters(), strict=True):
                p.copy_(master)


def test_the_other_network_is_clipped() -> None:
    [finding] = found(actor_critic(right=False))
    assert "that update is not clipped" in finding.message
    assert (finding.where.file or "").endswith("test_missed_clips.py")
    assert finding.where.function == "work"


@pytest.mark.parametrize(
    "work",
    [actor_critic(right=True), joint("c12"), joint("c21"), micro_batches, master_copies],
)
def test_clips_that_reach_their_optimizer(work: Callable[[], None]) -> None:
    assert not found(work)
