"""torch.distributions with parameters nobody validated."""

from __future__ import annotations

import math

import torch
from explain.heldout import our_losses
from explain.heldout.expected import expect
from torch import nn
from torch.distributions import Beta, Categorical, Gamma, Normal

import headway


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.mean = nn.Linear(8, 2)
        self.scale = nn.Linear(8, 2)

    def forward(self, obs):
        h = torch.tanh(self.body(obs))
        return Normal(self.mean(h), self.scale(h).exp(), validate_args=False)


@expect("0|zero", "log|div", samples=(4,))
def normal_with_scale_zero(run_dir):
    torch.manual_seed(0)
    actor = Actor()
    opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    data = [(torch.randn(6, 4), torch.randn(6, 2), torch.ones(6, 2)) for _ in range(4)]
    data[2][2][4, 1] = 0.0
    guard = headway.Guard(actor, opt, run_dir=run_dir)
    for obs, act, gain in guard(data):
        dist = actor(obs)
        dist = Normal(dist.loc, dist.scale * gain, validate_args=False)
        loss = -dist.log_prob(act).mean()  # born here: normal_with_scale_zero
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log|xlogy 0|zero", "xlogy|log", samples=(2,))
def beta_of_zero(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = [(torch.randn(5, 3), torch.rand(5).clamp(0.01, 0.99)) for _ in range(4)]
    data[2][1][2] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, share in guard(data):
        a, b = nn.functional.softplus(net(x)).unbind(-1)
        dist = Beta(a, b, validate_args=False)
        nll = -dist.log_prob(share)  # born here: beta_of_zero
        loss = nll.mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("gamma|lgamma|log 0|zero", "lgamma|log|xlogy|mul", samples=(1,))
def gamma_with_rate_zero(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = [(torch.randn(5, 3), torch.rand(5) + 0.1) for _ in range(4)]
    data[2][0][1] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, wait in guard(data):
        shape, rate = net(x).abs().unbind(-1)
        # born here: gamma_with_rate_zero
        loss = -Gamma(shape, rate, validate_args=False).log_prob(wait).mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("inf", "mul", samples=(3,))
def entropy_of_masked_policy(run_dir):
    # -inf logits are fine in log_prob; the entropy by hand multiplies 0 by -inf.
    torch.manual_seed(0)
    net = nn.Linear(4, 5)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = [(torch.randn(6, 4), torch.zeros(6, 5)) for _ in range(4)]
    data[2][1][3, 4] = -math.inf
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for obs, mask in guard(data):
        dist = Categorical(logits=net(obs) + mask, validate_args=False)
        act = dist.probs.argmax(-1)
        entropy = -(dist.probs * dist.logits).sum(-1)  # born here: entropy_of_masked_policy
        loss = -dist.log_prob(act).mean() - 0.01 * entropy.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard
