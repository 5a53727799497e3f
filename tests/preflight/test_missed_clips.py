"""Gradients that no step uses: clipped in the wrong place or for another step, or cleared."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from headway.core.findings import Finding
from headway.preflight.runner import run_check

LINES = Path(__file__).read_text().splitlines()


def found(work: Callable[[], None], *codes: str) -> list[Finding]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code in (codes or ("HD416",))]


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


def placed(order: str, *, clear: bool = True) -> Callable[[], None]:
    """One model: b computes gradients, c clips, z clears, s steps, h sets them by hand."""

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        for _ in range(4):
            x = torch.randn(8, 4)
            for what in order:
                if what == "b":
                    (net(x) - x[:, :1]).square().mean().backward()
                elif what == "c":
                    clip_grad_norm_(net.parameters(), 1.0)
                elif what == "z":
                    optimizer.zero_grad(set_to_none=clear)
                elif what == "s":
                    optimizer.step()
                else:
                    for p in net.parameters():
                        p.grad = torch.randn_like(p)

    return work


@pytest.mark.parametrize(
    ("order", "when"),
    [("zbsc", "after step()"), ("zcbs", "before backward()"), ("bscz", "after step()")],
)
@pytest.mark.parametrize("clear", [True, False])
def test_a_clip_at_the_wrong_place(order: str, when: str, clear: bool) -> None:
    [finding, *more] = found(placed(order, clear=clear))
    assert finding.evidence["when"] == when
    assert finding.where.line == 1 + next(
        at
        for at, line in enumerate(LINES)
        if line.strip() == "clip_grad_norm_(net.parameters(), 1.0)"
    )
    assert not more


@pytest.mark.parametrize("order", ["zbcs", "bcsz", "bcs", "hcs", "hcsz", "bsc", "cbcsz"])
def test_a_clip_that_a_step_uses(order: str) -> None:
    assert found(placed(order)) == []


LOST = ("HD204", "HD510")


@pytest.mark.parametrize(
    ("order", "clear", "code"),
    [
        ("bzs", True, "HD204"),
        ("bzs", False, "HD204"),
        ("zbzbzbs", True, "HD510"),
        ("zbzbzbcs", False, "HD510"),
    ],
)
def test_gradients_that_are_cleared_too_early(order: str, clear: bool, code: str) -> None:
    [finding] = found(placed(order, clear=clear), *LOST)
    assert finding.code == code
    assert finding.where.line == 1 + next(
        at for at, line in enumerate(LINES) if "optimizer.zero_grad(set_to_none=clear)" in line
    )
    if code == "HD510":
        assert finding.evidence["meant"] == 3


@pytest.mark.parametrize("order", ["zbs", "bsz", "bbsz", "zbbs", "hsz", "bsbs"])
def test_gradients_that_a_step_uses(order: str) -> None:
    assert found(placed(order), *LOST) == []


def projected() -> None:
    """Gradients of two tasks are read, cleared and put together by hand."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(5):
        out = net(torch.randn(8, 4)).square().mean(0)
        kept = []
        for part in out:
            optimizer.zero_grad()
            part.backward(retain_graph=True)
            kept.append([p.grad.clone() for p in net.parameters()])
        for p, one, two in zip(net.parameters(), *kept, strict=True):
            p.grad.copy_(one + two)
        optimizer.step()


def sharpness_aware() -> None:
    """The first gradient moves the weights, and is cleared before the second one."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(5):
        x = torch.randn(8, 4)
        moves = []
        for at in range(2):
            optimizer.zero_grad()
            (net(x) - x[:, :1]).square().mean().backward()
            with torch.no_grad():
                for p in net.parameters():
                    moves += [] if at else [0.05 * p.grad]
                for p, move in zip(net.parameters(), moves, strict=True):
                    p.add_(move, alpha=1 - 2 * at)
        optimizer.step()


def attacked() -> None:
    """Inputs are moved along their gradient first; that of the weights is cleared."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(5):
        x = torch.randn(8, 4, requires_grad=True)
        net(x).square().mean().backward()
        optimizer.zero_grad()
        net((x + 0.1 * x.grad.sign()).detach()).square().mean().backward()
        optimizer.step()


def skipped_now_and_then() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for at in range(12):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        if at % 5 != 2:
            optimizer.step()


@pytest.mark.parametrize("work", [projected, sharpness_aware, attacked, skipped_now_and_then])
def test_gradients_that_are_cleared_on_purpose(work: Callable[[], None]) -> None:
    assert found(work, *LOST) == []


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


def clips(kind: str) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        given = filter(lambda p: p.requires_grad, net.parameters())
        kept = list(net.parameters())
        optimizer = torch.optim.SGD(given if kind == "filter" else kept, 0.01)
        for _ in range(4):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (net(x) - x[:, :1]).square().mean().backward()
            clip_grad_norm_({"filter": given, "list": kept, "extra": []}[kind], 1.0)
            if kind == "extra":
                clip_grad_norm_(kept, 1.0)
            optimizer.step()

    return work


def test_a_clip_that_gets_no_parameters() -> None:
    [finding] = found(clips("filter"))
    assert "gets no parameters" in finding.message


def test_a_clip_of_a_list() -> None:
    assert not found(clips("list"))


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SGD])
def test_gradients_of_a_closure_are_not_lost(kind: type[torch.optim.Optimizer]) -> None:
    def work() -> None:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = kind(net.parameters(), lr=0.01)

        def closure() -> torch.Tensor:
            x = torch.randn(8, 4)
            loss = (net(x) - x[:, :1]).square().mean()
            loss.backward()
            return loss

        for _ in range(6):
            optimizer.zero_grad()
            optimizer.step(closure)

    assert found(work, *LOST) == []
