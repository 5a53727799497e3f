"""A second round: two infinities at once, odd loops, state beside the model, hooks, other data."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from explain.heldout.expected import expect
from torch import nn

import headway


def causal(n):
    return torch.full((n, n), -math.inf).triu(1)


@expect("exp overflow", "exp", samples=(2,))
def softmax_by_hand_with_a_mask(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 5)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    mask = torch.tensor([0.0, 0.0, 0.0, -math.inf, -math.inf])
    data = [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(4)]
    data[2][0][2] = 3000 * net.weight[0].detach().sign()
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        e = (net(x) + mask).exp()  # born here: softmax_by_hand_with_a_mask
        p = e / e.sum(-1, keepdim=True)
        loss = F.nll_loss((p + 1e-9).log(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("divi 0|zero", "div", samples=(4,))
def a_harmless_infinity_came_first(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.rand(6, 4), torch.rand(6, 1) + 0.1) for _ in range(4)]
    data[2][0][1, 0] = 0.0
    data[2][1][4] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        logs = x.log()  # -inf in sample 1
        weight = torch.exp(logs).sum(1, keepdim=True)  # and gone again
        loss = (weight * net(x) / y).abs().mean()  # born here: a_harmless_infinity_came_first
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect(
    "inf", "log_softmax|sum|nll_loss|cross_entropy|mul|neg|mean|cross_entropy_loss", samples=(1,)
)
def label_smoothing_over_masked_classes(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 5)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [
        (torch.randn(3, 4), torch.randint(0, 3, (3,)), torch.zeros(3, 5, dtype=torch.bool))
        for _ in range(4)
    ]
    data[2][2][1, 4] = True
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y, banned in guard(data):
        logits = net(x).masked_fill(banned, -math.inf)
        # born here: label_smoothing_over_masked_classes
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("inf", "kl_div|mul|sub", samples=(0,))
def distillation_from_a_masked_teacher(run_dir):
    torch.manual_seed(0)
    student, teacher = nn.Linear(4, 5), nn.Linear(4, 5)
    opt = torch.optim.SGD(student.parameters(), lr=1e-2)
    data = [(torch.randn(3, 4), torch.zeros(3, 5)) for _ in range(4)]
    data[2][1][0, 2] = -math.inf
    guard = headway.Guard(student, opt, run_dir=run_dir)
    for x, mask in guard(data):
        with torch.no_grad():
            logp = F.log_softmax(teacher(x) + mask, -1)
        logq = F.log_softmax(student(x), -1)
        # born here: distillation_from_a_masked_teacher
        loss = F.kl_div(logq, logp, log_target=True, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("divi 0|zero", "div", samples=(2,))
def single_where(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 3, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][2] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        h = net(x)
        total = h.abs().sum(1, keepdim=True)
        share = torch.where(total > 0, h / total, torch.zeros_like(h))  # born here: single_where
        loss = share.square().mean() + (net(x)[:, :, None] + causal(3)).softmax(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("sqrt|root 0|zero", "sqrt", samples=(3,))
def gradient_penalty(run_dir):
    torch.manual_seed(0)
    critic = nn.Linear(3, 1, bias=False)
    opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
    loader = [torch.rand(4, 3) + 0.1 for _ in range(4)]
    loader[2][3] = 0.0
    guard = headway.Guard(critic, opt, run_dir=run_dir)
    for real in guard(loader):
        x = real.detach().clone().requires_grad_()
        score = critic(x * x)
        (g,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        norm = (g**2).sum(1).sqrt()  # born here: gradient_penalty
        loss = -score.mean() + 10 * ((norm - 1) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("divi|0/0 0|zero", "div", samples=None)
def hook_that_normalises(run_dir):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.ones(4, 1)) for _ in range(4)]
    data[2][1].zero_()
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, weight in guard(data):
        h = net(x)
        h.register_hook(lambda g: g / g.norm())  # born here: hook_that_normalises
        loss = (weight * h).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("divi|0/0 0|zero", "div", cure=False)
def gradients_normalised_by_hand(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.ones(4, 1)) for _ in range(4)]
    data[2][1].zero_()
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, weight in guard(data):
        loss = (weight * net(x)).mean()
        opt.zero_grad()
        loss.backward()
        total = torch.sqrt(sum(p.grad.square().sum() for p in net.parameters()))
        for p in net.parameters():
            p.grad.div_(total)  # born here: gradients_normalised_by_hand
        opt.step()
    guard.close()
    return guard


@expect("divi|0/0 0|zero", "div")
def count_taken_to_python(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.ones(4, 3)) for _ in range(4)]
    data[2][1].zero_()
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, valid in guard(data):
        n = valid.sum().item()
        loss = (net(x).square() * valid).sum() / n  # born here: count_taken_to_python
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("norm|divi 0|zero", "div|normalize", samples=(1,))
def normalize_without_eps(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 3, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = [torch.randn(5, 4) for _ in range(4)]
    loader[2][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        z = F.normalize(net(x), dim=1, eps=0.0)  # born here: normalize_without_eps
        sim = z @ z.T
        sim = sim.masked_fill(torch.eye(5, dtype=torch.bool), -math.inf)
        loss = F.cross_entropy(sim, torch.tensor([1, 0, 3, 2, 0]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        return h.tanh()


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(3)])

    def forward(self, x, route):
        out = torch.zeros_like(x)
        use = x.new_zeros(())
        for i, expert in enumerate(self.experts):
            picked = route == i
            y = expert(x[picked])
            out[picked] = y
            use = use + expert.fc(x[picked]).mean(0).square().sum()  # born here: load_of_experts
        return out, use


@expect("mean no|empty|nothing", "mean", "", cure=False)
def load_of_experts(run_dir):
    torch.manual_seed(0)
    model = MoE()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = [(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])) for _ in range(4)]
    data[2][1][:] = torch.tensor([0, 1, 1, 0, 1, 0])
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x, route in guard(data):
        out, use = model(x, route)
        loss = out.square().mean() + 0.1 * use
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Linear(4, 4, bias=False)

    def unit(self, x):
        h = self.tower(x)
        return h / h.norm(dim=-1, keepdim=True)  # born here: second_call_of_a_method

    def forward(self, a, b):
        left = self.unit(a)
        right = self.unit(b)  # called here: second_call_of_a_method
        return (left * right).sum(-1)


@expect("norm|divi 0|zero", "div", "", samples=(2,), called_from=True)
def second_call_of_a_method(run_dir):
    torch.manual_seed(0)
    model = Siamese()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(4)]
    data[2][1][2] = 0
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for a, b in guard(data):
        loss = -model(a, b).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("nan batch|data|input", "", module=None, samples=(2,))
def nan_in_a_numpy_batch(run_dir):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(4, 3)).astype("float32"), rng.integers(0, 2, 4)) for _ in range(4)]
    data[2][0][2, 1] = np.nan
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for features, label in guard(data):
        x, y = torch.from_numpy(features), torch.as_tensor(label)
        loss = F.cross_entropy(net(x), y)  # born here: nan_in_a_numpy_batch
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(1,))
def log_of_a_numpy_batch(run_dir):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = [rng.uniform(0.1, 1, size=(4, 3)) for _ in range(4)]
    data[2][1, 1] = 0
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for rows in guard(data):
        x = torch.tensor(rows, dtype=torch.float32)
        x = x.log()  # born here: log_of_a_numpy_batch
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("float32 overflow|maximum", "to|_to_copy", samples=(3,))
def cast_from_double(run_dir):
    torch.manual_seed(0)
    data = [torch.randn(4, 3, dtype=torch.float64) for _ in range(4)]
    data[2][3, 0] = 1e300
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(data):
        x = x.float()  # born here: cast_from_double
        loss = torch.tanh(net(x)).mean() + net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(0,))
def mapped_functions(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = [[torch.randn(4, 3), torch.randn(4, 3)] for _ in range(4)]
    data[2][1][0] = 0
    power = functools.partial(torch.pow, exponent=2)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for views in guard(data):
        outs = map(power, map(net, views))
        means = [o.mean() for o in map(torch.log, outs)]  # born here: mapped_functions
        loss = torch.stack(means).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


def progress(iterable):
    for i, item in enumerate(iterable):
        assert i < 1000
        yield item


@expect("log 0|zero", "log", samples=(1,))
def behind_a_progress_bar(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = [(torch.randn(4, 3), torch.rand(4, 1) + 0.1) for _ in range(4)]
    data[2][1][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for i, (x, y) in enumerate(progress(guard(data)), start=1):
        loss = (net(x) - y.log()).square().mean() * (1 / i)  # born here: behind_a_progress_bar
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(1,))
def zipped_loaders(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    labelled = [(torch.randn(4, 3), torch.rand(4, 1) + 0.1) for _ in range(4)]
    labelled[2][1][1] = 0
    unlabelled = itertools.cycle([torch.randn(4, 3)])
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for (x, y), u in zip(guard(labelled), unlabelled):
        error = net(x) - y.log()  # born here: zipped_loaders
        loss = error.square().mean() + net(u).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    running = 0.0
    for images, targets in loader:
        images, targets = images.to(device), targets.to(device)
        outputs = model(images)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * len(images)
    return running


def criterion(outputs, targets):
    relative = (outputs - targets) / targets  # born here: the_usual_epoch_function
    return relative.square().mean()


@expect("divi 0|zero", "div", samples=(2,), step=6)
def the_usual_epoch_function(run_dir):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = [(torch.randn(4, 3), torch.rand(4, 1) + 0.5) for _ in range(4)]
    guard = headway.Guard(model, optimizer, run_dir=run_dir)
    loader = guard(data)
    for epoch in range(2):
        if epoch == 1:
            data[2][1][2] = 0
        train_one_epoch(model, loader, optimizer, torch.device("cpu"))
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(2,))
def vmapped(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(4, 3) for _ in range(4)]
    loader[2][2] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        h = net(x).square()
        each = torch.vmap(lambda row: row.log().sum())(h)  # born here: vmapped
        loss = each.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("softmax mask|inf", "softmax|_softmax")
def softmax_over_the_wrong_dimension(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 5)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = [(torch.randn(4, 3), torch.zeros(5, dtype=torch.bool)) for _ in range(4)]
    data[2][1][3] = True
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, banned in guard(data):
        logits = net(x).masked_fill(banned[None], -math.inf)
        p = logits.softmax(dim=0)  # born here: softmax_over_the_wrong_dimension
        loss = p.square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(1,))
def written_piece_by_piece(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 2, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(4, 3) for _ in range(4)]
    loader[2][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        h = net(x).abs()
        table = torch.zeros(4, 3)
        table[:, 0] = 1.0
        table[:, 1:] = torch.log(h)  # born here: written_piece_by_piece
        loss = table.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("inf", "sub", samples=(0,))
def differences_of_sums(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = [(torch.randn(3, 3), torch.zeros(3, 4, dtype=torch.bool)) for _ in range(4)]
    data[2][1][0, 1] = True
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, banned in guard(data):
        logp = net(x).masked_fill(banned, -math.inf)
        total = logp.cumsum(-1)
        back = total[:, 1:] - total[:, :-1]  # born here: differences_of_sums
        loss = back.exp().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.fc(x) * self.logit_scale.exp()  # born here: logit_scale_ran_away


@expect("exp overflow", "exp", cure=False)
def logit_scale_ran_away(run_dir):
    torch.manual_seed(0)
    model = Scaled()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = [(torch.randn(4, 3), torch.randint(0, 4, (4,))) for _ in range(4)]

    def loader():
        for i, batch in enumerate(data):
            if i == 2:
                with torch.no_grad():
                    model.logit_scale.fill_(100.0)
            yield batch

    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x, y in guard(loader()):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class Online(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(4, 3, bias=False)
        self.teacher = nn.Linear(4, 3, bias=False).requires_grad_(False)
        self.bank = torch.zeros(8, 3)
        self.at = 0

    @torch.no_grad()
    def follow(self):
        self.teacher.weight.mul_(0.9).add_(self.student.weight, alpha=0.1)


@expect("norm|divi 0|zero", "div", samples=(1,))
def a_teacher_that_follows(run_dir):
    # The body also moves a teacher, fills a bank and sums up its losses: no replay may show there.
    torch.manual_seed(0)
    model = Online()
    opt = torch.optim.SGD(model.student.parameters(), lr=1e-2)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][1] = 0
    seen = torch.zeros(())
    steps = torch.zeros((), dtype=torch.long)
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x in guard(loader):
        z = model.student(x)
        z = z / z.norm(dim=1, keepdim=True)  # born here: a_teacher_that_follows
        t = F.normalize(model.teacher(x), dim=1)
        loss = (z - t).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.follow()
        model.bank[model.at : model.at + 4] += t
        model.at = (model.at + 4) % 8
        seen += torch.nan_to_num(loss.detach())
        steps += 1
    guard.close()
    guard.left_over = [seen, steps, model.bank]
    return guard


@expect("exp overflow", "exp", samples=(0,))
def two_overflows_one_masked_out(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    data = [(torch.rand(4, 2), torch.ones(4, 1)) for _ in range(4)]
    data[2][0][0] = 80.0
    data[2][0][3] = 80.0
    data[2][1][3] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, keep in guard(data):
        with torch.no_grad():
            weight = torch.exp(net(x))  # born here: two_overflows_one_masked_out
        weight = torch.where(keep > 0, weight, torch.zeros_like(weight))
        loss = (weight * net(x)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("norm|root|divi 0|zero", "rsqrt|mul|div", "norms.b", samples=(2,))
def one_of_two_norms(run_dir):
    torch.manual_seed(0)

    class Rms(nn.Module):
        def forward(self, x):
            scale = x.square().mean(-1, keepdim=True).rsqrt()  # born here: one_of_two_norms
            return x * scale

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleDict({"a": Rms(), "b": Rms()})
            self.fc = nn.Linear(4, 4, bias=False)
            self.register_buffer("mask", causal(4))

        def forward(self, a, b):
            q = self.norms["a"](a)
            k = self.norms["b"](self.fc(b))
            return ((q[:, :, None] * k[:, None]) + self.mask).softmax(-1)

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = [(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(4)]
    data[2][1][2] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for a, b in guard(data):
        loss = net(a, b).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("nan batch|data|input", "", module=None, samples=(2,))
def packed_sequences(run_dir):
    torch.manual_seed(0)
    rnn = nn.LSTM(3, 4, batch_first=True)
    opt = torch.optim.Adam(rnn.parameters())
    data = [(torch.randn(4, 5, 3), torch.tensor([5, 4, 3, 2])) for _ in range(4)]
    data[2][0][2, 1, 0] = math.nan
    guard = headway.Guard(rnn, opt, run_dir=run_dir)
    for x, lengths in guard(data):
        # born here: packed_sequences
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        _, (h, _) = rnn(packed)
        loss = h.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("overflow", "pow|square|mse_loss|mul|linear", None, step=1, samples=(), cure=False)
def rate_far_too_high(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e25)
    data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(3)]
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        error = net(x) - y
        loss = (error**2).mean()  # born here: rate_far_too_high
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("nan batch|data|input", "", module=None, samples=(1,))
def nan_in_a_copied_array(run_dir):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(4, 3)), "y": rng.integers(0, 2, 4)} for _ in range(4)]
    data[2]["x"][1, 1] = np.nan
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for item in guard(data):
        x = torch.tensor(item["x"], dtype=torch.float32)
        loss = F.cross_entropy(net(x), torch.tensor(item["y"]))  # born here: nan_in_a_copied_array
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard
