"""Normalisation that divides by nothing."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.heldout import our_losses
from explain.heldout.expected import expect
from torch import nn
from torch.nn.utils import parametrizations

import headway


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        # born here: rms_norm_without_eps
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * self.weight


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.fc = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        return x + self.fc(self.norm(x))


@expect("rsqrt|root|divi 0|zero", "rsqrt|mul", "0.norm", samples=(3,))
def rms_norm_without_eps(run_dir):
    torch.manual_seed(0)
    net = nn.Sequential(Block(6), Block(6))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = [torch.randn(5, 4, 6) for _ in range(4)]
    loader[2][3, 1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("norm", "native_layer_norm|layer_norm", "norm", samples=(0,))
def layer_norm_of_a_constant_row(run_dir):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6, eps=0.0)
            self.out = nn.Linear(6, 3)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, -math.inf]))

        def forward(self, x):
            h = self.norm(x)  # born here: layer_norm_of_a_constant_row
            return self.out(h) + self.mask

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = [(torch.randn(4, 6), torch.randint(0, 2, (4,))) for _ in range(4)]
    data[2][0][0] = 1.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div", samples=(2,))
def standardised_by_hand(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = [torch.randn(4, 6) for _ in range(4)]
    loader[2][2] = 5.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        mean = x.mean(1, keepdim=True)
        std = x.std(1, keepdim=True)
        x = (x - mean) / std  # born here: standardised_by_hand
        loss = net(x).square().mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div", samples=(5,))
def cosine_of_zero_vectors(run_dir):
    torch.manual_seed(0)
    tower = nn.Linear(6, 4, bias=False)
    opt = torch.optim.SGD(tower.parameters(), lr=0.1)
    loader = [(torch.randn(8, 6), torch.randn(8, 6)) for _ in range(4)]
    loader[2][1][5] = 0.0
    guard = headway.Guard(tower, opt, run_dir=run_dir)
    for image, text in guard(loader):
        a = tower(image)
        b = tower(text)
        a = a / a.norm(dim=-1, keepdim=True)
        b = b / b.norm(dim=-1, keepdim=True)  # born here: cosine_of_zero_vectors
        logits = (a * b).sum(-1)
        loss = (1 - logits).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        x = self.bn(self.conv(x))  # born here: frozen_batch_norm_with_bad_statistics
        return self.fc(x.relu().mean((2, 3)))


@expect("running_var", "batch_norm|native_batch_norm", "bn", cure=False)
def frozen_batch_norm_with_bad_statistics(run_dir):
    torch.manual_seed(0)
    model = Backbone()
    model.bn.eval()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(4, 1, 6, 6), torch.randint(0, 2, (4,))) for _ in range(4)]

    def loader():
        for i, batch in enumerate(data):
            if i == 2:
                model.bn.running_var[1] = math.nan  # someone merged checkpoints
            yield batch

    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x, y in guard(loader()):
        loss = F.cross_entropy(model(x), y)
        loss = loss + 1e-3 * our_losses.causal_prior(model)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("0|zero", "_weight_norm|weight_norm|div|_weight_norm_interface", "fc", cure=False)
def weight_norm_of_a_zeroed_layer(run_dir):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"fc": parametrizations.weight_norm(nn.Linear(4, 3)), "out": nn.Linear(3, 1)}
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [torch.randn(4, 4) for _ in range(4)]
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for i, x in enumerate(guard(loader)):
        if i == 2:
            with torch.no_grad():
                model["fc"].parametrizations.weight.original1[1] = 0.0
        h = model["fc"](x)  # born here: weight_norm_of_a_zeroed_layer
        loss = model["out"](h).square().mean()
        loss = loss + 1e-3 * our_losses.causal_prior(model)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


class Whitening(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / x.std(0)  # born here: whitening_a_batch_of_one


@expect("std|deviation|var one|single|1", "std|var", "1", samples=None)
def whitening_a_batch_of_one(run_dir):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), Whitening(), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(torch.utils.data.DataLoader(torch.randn(9, 3), batch_size=4)):
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard
