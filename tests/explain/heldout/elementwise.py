"""Single functions at the one point where they, or their gradients, are not finite."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.heldout import our_losses
from explain.heldout.expected import expect
from torch import nn

import headway


@expect("log1p|log 0|zero|-1", "log1p", samples=(4,))
def log1p_of_minus_one(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    data = [(torch.randn(6, 3), torch.rand(6, 1) * 0.9) for _ in range(4)]
    data[2][1][4] = 1.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, p in guard(data):
        target = p.log() - torch.log1p(-p)  # born here: log1p_of_minus_one
        loss = F.mse_loss(net(x), target)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("expm1|exp overflow", "expm1", samples=(1,))
def expm1_overflow(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    with torch.no_grad():
        net.weight.fill_(1.0)
    loader = [torch.rand(6, 3) for _ in range(4)]
    loader[2][1] = 70.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        price = torch.expm1(net(x))  # born here: expm1_overflow
        loss = price.mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("pow|power|root 0|zero", "pow|sqrt", samples=(0,))
def gamma_correction(run_dir):
    torch.manual_seed(0)
    net = nn.Conv2d(1, 1, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = [torch.rand(3, 1, 4, 4) + 0.1 for _ in range(4)]
    loader[2][0, 0, 2, 2] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for image in guard(loader):
        light = net(image).abs()
        shown = torch.pow(light, 1 / 2.2)  # born here: gamma_correction
        loss = (shown - 0.5).square().mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


class PowerLaw(nn.Module):
    def __init__(self):
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(-0.5))

    def forward(self, r):
        return r**self.exponent  # born here: power_law_at_zero


@expect("pow|power 0|zero", "pow", "law", samples=(3,))
def power_law_at_zero(run_dir):
    torch.manual_seed(0)
    model = nn.ModuleDict({"law": PowerLaw()})
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [(torch.rand(6) + 0.1, torch.rand(6)) for _ in range(4)]
    data[2][0][3] = 0.0
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for r, y in guard(data):
        loss = F.mse_loss(model["law"](r), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


def geodesic(a, b):
    cos = (a * b).sum(-1)
    return torch.acos(cos)  # born here: angle_between_equal_directions


@expect("acos 1", "acos", samples=(1,))
def angle_between_equal_directions(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    data = [
        (F.normalize(torch.randn(4, 2), dim=-1) * 0.9, F.normalize(torch.randn(4, 2), dim=-1))
        for _ in range(4)
    ]
    data[2][0][1] = torch.tensor([1.0, 0.0])
    data[2][1][1] = torch.tensor([1.0, 0.0])
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for pose, truth in guard(data):
        loss = geodesic(net(pose), truth).mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("overflow", "cumprod", samples=(2,))
def cumprod_overflow(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    loader = [torch.rand(4, 8) for _ in range(4)]
    loader[2][2] *= 1e8
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        growth = (1 + net(x).abs()).cumprod(dim=1)  # born here: cumprod_overflow
        loss = growth[:, -1].mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(2,))
def spectrum_of_silence(run_dir):
    torch.manual_seed(0)
    net = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(4, 1, 32) for _ in range(4)]
    loader[2][2] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for audio in guard(loader):
        spectrum = torch.fft.rfft(net(audio))
        power = spectrum.real**2 + spectrum.imag**2
        loss = torch.log(power).mean()  # born here: spectrum_of_silence
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


class ComplexNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.cfloat))

    def forward(self, z):
        z = z @ self.w
        return z / z.abs()  # born here: phase_of_a_complex_zero


@expect("0/0|zero|0 divi", "div", samples=(1,))
def phase_of_a_complex_zero(run_dir):
    torch.manual_seed(0)
    net = ComplexNet()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(5, 4, dtype=torch.cfloat) for _ in range(4)]
    loader[2][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for z in guard(loader):
        loss = (net(z) - 1).abs().square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div", samples=(3,))
def in_place_division(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.rand(5, 4) for _ in range(4)]
    loader[2][3] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for counts in guard(loader):
        counts.div_(counts.sum(1, keepdim=True))  # born here: in_place_division
        counts.sub_(0.25)
        loss = net(counts).square().mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("log 0|zero", "log|log_", samples=(2,))
def in_place_log_of_relu(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    with torch.no_grad():
        net.bias.fill_(5.0)
    loader = [torch.rand(5, 4) for _ in range(4)]
    loader[2][2] = -100 * net.weight[0].detach().sign()
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        h = net(x).clamp(min=0)
        h.log_()  # born here: in_place_log_of_relu
        loss = h.mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(4,))
def log_of_a_slice(run_dir):
    # Column 0 is zero by design and never looked at.
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.rand(5, 4) + 0.1 for _ in range(4)]
    for x in loader:
        x[:, 0] = 0.0
    loader[2][4, 2] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        features = x[:, 1:].log()  # born here: log_of_a_slice
        loss = net(features).square().mean()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("overflow", "einsum|bmm|mul|sum", samples=(0,))
def einsum_overflow(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    mask = torch.full((3, 3), -math.inf).triu(1)
    loader = [torch.randn(5, 3, 4) for _ in range(4)]
    loader[2][0] *= 1e25
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        h = net(x)
        scores = torch.einsum("bqd,bkd->bqk", h, h)  # born here: einsum_overflow
        loss = (scores + mask).softmax(-1).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard


@expect("overflow", "bilinear|_trilinear", "match", samples=(2,))
def bilinear_overflow(run_dir):
    torch.manual_seed(0)

    class Matcher(nn.Module):
        def __init__(self):
            super().__init__()
            self.match = nn.Bilinear(4, 4, 1)

        def forward(self, a, b):
            return self.match(a, b)  # born here: bilinear_overflow

    net = Matcher()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [(torch.randn(5, 4), torch.randn(5, 4)) for _ in range(4)]
    loader[2][0][2] = 1e25
    loader[2][1][2] = 1e25
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for a, b in guard(loader):
        loss = net(a, b).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard
