"""Bootstrapped targets that are trained along with the prediction, and losses that look alike."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.core.findings import Finding
from headway.preflight.runner import run_check

GAMMA = 0.98


def found(loss_of: Callable[..., Tensor]) -> list[Finding]:
    gc.collect()

    def work() -> None:
        torch.manual_seed(0)
        policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        target = copy.deepcopy(policy)
        optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
        for _ in range(3):
            state, following = torch.randn(8, 4), torch.randn(8, 4)
            reward, done = torch.rand(8), torch.randint(0, 2, (8,)).float()
            loss = loss_of(policy, target, state, following, reward, done)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == "HD121"]


def q_of(net: nn.Module, state: Tensor) -> Tensor:
    return net(state).gather(1, torch.zeros(len(state), 1, dtype=torch.long)).squeeze(1)


def same_network(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Any) -> Tensor:
    wanted = r + 0.98 * policy(n).max(1).values * (1 - d)
    return F.mse_loss(q_of(policy, s), wanted)


def by_hand(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Tensor) -> Tensor:
    wanted = policy(n).max(1).values * (0.98 * (1 - d)) + r
    return (wanted - q_of(policy, s)).pow(2).mean()


def tutorial(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Tensor) -> Tensor:
    values = torch.zeros(len(s))
    values[d == 0] = policy(n[d == 0]).max(1).values
    return nn.SmoothL1Loss()(q_of(policy, s), values * GAMMA + r)


def no_grad(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Tensor) -> Tensor:
    with torch.no_grad():
        wanted = r + 0.98 * policy(n).max(1).values * (1 - d)
    return F.mse_loss(q_of(policy, s), wanted)


def detached(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Any) -> Tensor:
    wanted = r + 0.98 * policy(n).max(1).values * (1 - d)
    return F.mse_loss(q_of(policy, s), wanted.detach())


def of_target(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Any) -> Tensor:
    return F.mse_loss(q_of(policy, s), r + 0.98 * target(n).max(1).values * (1 - d))


def siamese(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Any) -> Tensor:
    return F.mse_loss(policy(s), policy(s + 0.1 * n)) - policy(s).std(0).mean()


def residual(policy: nn.Module, target: Any, s: Tensor, n: Tensor, r: Tensor, d: Any) -> Tensor:
    """A physical residual: a step of the network's own flow."""
    return F.mse_loss(policy(s), policy(s - 0.1) + 0.1 * policy(n))


@pytest.mark.parametrize("loss_of", [same_network, by_hand, tutorial])
def test_a_target_that_is_trained(loss_of: Any) -> None:
    [finding] = found(loss_of)
    assert "reward + 0.98 · value" in finding.message
    assert (finding.where.file or "").endswith("test_moving_targets.py")


@pytest.mark.parametrize("loss_of", [no_grad, detached, of_target, siamese, residual])
def test_targets_that_stand_still_and_other_comparisons(loss_of: Any) -> None:
    assert not found(loss_of)


class Agent:
    def __init__(self, net: nn.Module, target: nn.Module) -> None:
        self.policy_net, self.target_net = net, target
        self.optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def learn(self, classify: bool) -> None:
        state, reward = torch.randn(8, 4), torch.rand(8)
        value = q_of(self.policy_net, state)
        wanted = reward + 0.9 * self.target_net(state + 0.1).max(1).values.detach()
        if classify:
            loss = F.binary_cross_entropy_with_logits(value, (wanted > 0.5).float())
        else:
            loss = F.mse_loss(value, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@pytest.mark.parametrize(
    ("copied", "classify", "codes"),
    [(False, False, ["HD121"]), (True, False, []), (False, True, [])],
)
def test_a_target_network_that_is_the_trained_network(
    copied: bool, classify: bool, codes: list[str]
) -> None:
    gc.collect()

    def work() -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        agent = Agent(net, copy.deepcopy(net) if copied else net)
        for _ in range(4):
            agent.learn(classify)

    findings = run_check(work, max_steps=None).report.findings
    found = [item for item in findings if item.code == "HD121"]
    assert [item.code for item in found] == codes
    assert all("target_net and policy_net are the same" in item.message for item in found)
