"""Accumulation, closures, compiled models, scalers: other ways to take a step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.heldout.expected import expect
from torch import nn

import headway


@expect("log 0|zero", "log", samples=(1,), step=1, batch=1)
def second_micro_batch_of_four(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = [(torch.randn(3, 4), torch.rand(3, 1) + 0.1) for _ in range(12)]
    data[5][1][1] = 0
    every = 4
    guard = headway.Guard(net, opt, run_dir=run_dir)
    opt.zero_grad()
    for i, (x, y) in enumerate(guard(data)):
        loss = F.mse_loss(net(x), y.log()) / every  # born here: second_micro_batch_of_four
        loss.backward()
        if (i + 1) % every == 0:
            opt.step()
            opt.zero_grad()
    guard.close()
    return guard


@expect("divi 0|zero", "div", samples=None)
def chunks_of_one_batch(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = [(torch.randn(8, 4), torch.rand(8, 1) + 0.1) for _ in range(4)]
    data[2][1][5] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        opt.zero_grad()
        for xs, ys in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = ((net(xs) - ys).abs() / ys).mean() / 4  # born here: chunks_of_one_batch
            loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("sqrt|root 0|zero", "sqrt", samples=(0,))
def lbfgs_closure(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 2, bias=False)
    opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    loader = [torch.randn(6, 4) for _ in range(4)]
    loader[2][0] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):

        def closure():
            opt.zero_grad()
            loss = net(x).square().sum(1).sqrt().mean()  # born here: lbfgs_closure
            loss.backward()
            return loss

        opt.step(closure)
    guard.close()
    return guard


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        h = self.lin(x)
        return h / h.sum(-1, keepdim=True)  # born here: compiled_model


@expect("0/0|zero|0 divi", "div", module=None, samples=(2,))
def compiled_model(run_dir):
    torch.manual_seed(0)
    net = Compiled()
    fast = torch.compile(net, backend="eager")
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][2] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = fast(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 2)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

    def forward(self, x):
        h = self.up(x)  # born here: autocast_matmul_overflow
        return self.down(torch.relu(h))


@expect("float16|fp16 overflow", "linear|addmm|mm", "up", samples=(3,))
def autocast_matmul_overflow(run_dir):
    torch.manual_seed(0)
    model = Wide()
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = [(torch.randn(4, 8), torch.randint(0, 2, (4,))) for _ in range(4)]
    data[2][0][3] = 6e4 * model.up.weight[0].detach().sign()
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x, y in guard(data):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("float16|fp16 overflow", "pow|square|mul", samples=(1,))
def half_model_squares(run_dir):
    torch.manual_seed(0)
    model = nn.Linear(4, 4).half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][1] = 2000
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x in guard(loader):
        out = model(x.half())
        energy = out**2  # born here: half_model_squares
        loss = energy.float().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(0,))
def bfloat16_rounds_to_one(run_dir):
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][0] = 2.0
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x in guard(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            p = torch.sigmoid(model(x))
            loss = -torch.log(1 - p).mean()  # born here: bfloat16_rounds_to_one
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("divi 0|zero", "div", samples=(1,))
def double_precision(run_dir):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        model = nn.Linear(4, 1)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        data = [(torch.randn(4, 4), torch.rand(4, 1) + 0.1) for _ in range(4)]
        data[2][1][1] = 0.0
        guard = headway.Guard(model, opt, run_dir=run_dir)
        for x, t in guard(data):
            speed = model(x) / t  # born here: double_precision
            loss = speed.square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        guard.close()
    finally:
        torch.set_default_dtype(torch.float32)
    return guard


@expect("log 0|zero", "log", samples=(3,))
def two_optimizers_gan(run_dir):
    torch.manual_seed(0)
    gen, disc = nn.Linear(2, 4), nn.Linear(4, 1, bias=False)
    model = nn.ModuleDict({"gen": gen, "disc": disc})
    opt_g = torch.optim.Adam(gen.parameters(), lr=1e-4)
    opt_d = torch.optim.Adam(disc.parameters(), lr=1e-4)
    data = [(torch.randn(4, 4), torch.randn(4, 2)) for _ in range(4)]
    data[2][0][3] = -1000 * disc.weight[0].detach().sign()
    guard = headway.Guard(model, [opt_g, opt_d], run_dir=run_dir)
    for real, noise in guard(data):
        fake = gen(noise)
        p_real = disc(real).sigmoid()
        p_fake = disc(fake.detach()).sigmoid()
        d_loss = -(
            torch.log(p_real)  # born here: two_optimizers_gan
            + torch.log(1 - p_fake)
        ).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = -F.logsigmoid(disc(fake)).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
    guard.close()
    return guard


class Physics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, q):
        return self.net(q).sum() + (1.0 / q.norm(dim=-1)).sum()  # born here: force_of_an_energy


@expect("divi|reciprocal 0|zero", "reciprocal|div", samples=(2,))
def force_of_an_energy(run_dir):
    torch.manual_seed(0)
    model = Physics()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = [(torch.randn(4, 2), torch.randn(4, 2)) for _ in range(4)]
    data[2][0][2] = 0
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for q, force in guard(data):
        q = q.clone().requires_grad_(True)
        energy = model(q)
        (grad,) = torch.autograd.grad(energy, q, create_graph=True)
        loss = F.mse_loss(-grad, force)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard
