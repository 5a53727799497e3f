"""The same few accidents in all the shapes Python code has."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from explain.heldout import our_losses
from explain.heldout.expected import expect
from explain.heldout.our_losses import normalise
from torch import nn
from torch.utils.checkpoint import checkpoint

import headway


@expect("log 0|zero", "log|mul", samples=(2,))
def entropy_from_another_file(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][2] *= 1000
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        probs = net(x).softmax(-1)
        loss = our_losses.entropy(probs).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("0/0|zero|0 divi", "div", samples=(1,), called_from=True)
def helper_called_twice(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 4, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = [(torch.rand(3, 4), torch.rand(3, 4)) for _ in range(4)]
    loader[2][1][1] = 0.0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for a, b in guard(loader):
        p = normalise(net(a).abs())
        q = normalise(net(b).abs())  # called here: helper_called_twice
        loss = F.mse_loss(p, q)
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("divi 0|zero", "div", samples=(3,))
def decorated_loss(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.rand(4, 1) + 0.5) for _ in range(4)]
    data[2][1][3] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        loss = our_losses.relative_error(net(x), y)
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("divi|reciprocal 0|zero", "reciprocal|div", samples=(0,))
def lambda_inverse(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    inverse = lambda t: 1.0 / t  # noqa: E731 # born here: lambda_inverse
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][0] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = inverse(net(x)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(2,))
def comprehension(run_dir):
    torch.manual_seed(0)
    net = nn.ModuleList([nn.Linear(4, 1, bias=False), nn.Linear(5, 1, bias=False)])
    opt = torch.optim.SGD(net.parameters(), lr=1e-5)
    data = [{"a": torch.randn(4, 4), "b": torch.randn(4, 5)} for _ in range(4)]
    data[2]["b"][2] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for views in guard(data):
        outputs = [layer(view).square() for layer, view in zip(net, views.values(), strict=True)]
        loss = sum([out.log().mean() for out in outputs])  # born here: comprehension
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


class LogActivation(nn.Module):
    def forward(self, x):
        return torch.log(x.abs())  # born here: deep_inside_containers


class Stage(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4, bias=False), act)

    def forward(self, x):
        return x + self.body(x)


@expect("log 0|zero", "log", "stages.1.body.1", samples=(1,))
def deep_inside_containers(run_dir):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([Stage(nn.Tanh()), Stage(LogActivation())])

        def forward(self, x):
            for stage in self.stages:
                x = stage(x)
            return x

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = net(x).square().mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


class DepthHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 1, bias=False)

    def forward(self, h):
        return self.lin(h).square().sqrt()  # born here: one_head_of_many


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 6, bias=False)
        self.heads = nn.ModuleDict({"label": nn.Linear(6, 3), "depth": DepthHead()})

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}


@expect("sqrt|root 0|zero", "sqrt", "heads.depth", samples=(2,))
def one_head_of_many(run_dir):
    torch.manual_seed(0)
    model = MultiTask()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = [(torch.randn(4, 4), torch.randint(0, 3, (4,)), torch.rand(4, 1)) for _ in range(4)]
    data[2][0][2] = 0
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for x, label, depth in guard(data):
        out = model(x)
        losses = {
            "label": F.cross_entropy(out["label"], label),
            "depth": F.l1_loss(out["depth"], depth),
        }
        loss = sum(losses.values())
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


@dataclass
class Output:
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None


class HFStyle(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.GELU())
        self.lm_head = nn.Linear(8, 16)

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        logits = self.lm_head(self.transformer(input_ids))
        logits = logits.masked_fill(torch.arange(16) == 15, -math.inf)  # a token never to be said
        loss = None
        if labels is not None:
            nll = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            keep = attention_mask.flatten()
            loss = (nll * keep).sum() / keep.sum()  # born here: hf_style_output
        return Output(loss=loss, logits=logits)


@expect("0/0|zero|0 divi", "div")
def hf_style_output(run_dir):
    torch.manual_seed(0)
    model = HFStyle()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = [
        {
            "input_ids": torch.randint(0, 15, (2, 6)),
            "attention_mask": torch.ones(2, 6),
            "labels": torch.randint(0, 15, (2, 6)),
        }
        for _ in range(4)
    ]
    loader[2]["attention_mask"].zero_()
    guard = headway.Guard(model, optimizer, run_dir=run_dir)
    for batch in guard(loader):
        batch = {k: v.to("cpu") for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss = loss + 1e-3 * our_losses.causal_prior(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return guard


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, 1)

    def block(self, x):
        h = self.first(x)
        return h / h.norm(dim=1, keepdim=True)  # born here: inside_checkpoint

    def forward(self, x):
        return self.last(checkpoint(self.block, x, use_reentrant=False))


@expect("0/0|zero|0 divi", "div", samples=(0,))
def inside_checkpoint(run_dir):
    torch.manual_seed(0)
    net = Checkpointed()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][0] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = net(x).square().mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


class CheckpointedRoot(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)

    def distance(self, x):
        return self.first(x).square().sum(-1).sqrt()  # born here: gradient_inside_checkpoint

    def forward(self, x):
        return checkpoint(self.distance, x, use_reentrant=False)


@expect("sqrt|root 0|zero", "sqrt", samples=(3,))
def gradient_inside_checkpoint(run_dir):
    torch.manual_seed(0)
    net = CheckpointedRoot()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][3] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = net(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    guard.close()
    return guard


class StraightNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        length = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, length)
        return x / length.clamp(min=1e-8)

    @staticmethod
    def backward(ctx, grad):
        x, length = ctx.saved_tensors
        return grad / length  # born here: own_backward


@expect("divi|0/0 0|zero", "div", samples=(1,))
def own_backward(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(4, 4, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = [torch.randn(4, 4) for _ in range(4)]
    loader[2][1] = 0
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x in guard(loader):
        loss = (StraightNorm.apply(net(x)) - 1).square().mean()
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(net)
        loss.backward()
        opt.step()
    guard.close()
    return guard


@expect("log 0|zero", "log", samples=(2,))
def branches_and_try(run_dir):
    # A loop body with everything in it: conditions, try, continue, a counter, a metric.
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2)
    data = [(torch.randn(4, 4), torch.rand(4, 2) + 0.1) for _ in range(5)]
    data[2][1][2, 1] = 0
    best, seen, history = math.inf, 0, []
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for epoch in range(1):
        net.train()
        for i, (x, y) in enumerate(guard(data)):
            if x.shape[0] < 2:
                continue
            try:
                opt.zero_grad(set_to_none=True)
                pred = net(x)
                target = y.log().clamp(max=5)  # born here: branches_and_try
                loss = F.smooth_l1_loss(pred, target)
                if epoch == 0 and i >= 0:
                    loss = loss * 0.5
                loss.backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
            except RuntimeError as error:
                print("skipping", error)
                continue
            sched.step()
            seen += len(x)
            best = min(best, loss.item())
            history.append(best)
    guard.close()
    return guard


class Trainer:
    """What every project has once: the loop as a method."""

    def __init__(self, model, loader, run_dir):
        self.model = model
        self.optim = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.loader = loader
        self.guard = headway.Guard(model, self.optim, run_dir=run_dir)
        self.history = []

    def compute_loss(self, batch):
        x, y = batch
        ratio = self.model(x) / y  # born here: trainer_class
        return (ratio - 1).abs().mean()

    def training_step(self, batch):
        loss = self.compute_loss(batch)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return loss.detach()

    def fit(self):
        for batch in self.guard(self.loader):
            self.history.append(self.training_step(batch))
        self.guard.close()
        return self.guard


@expect("divi 0|zero", "div", samples=(1,))
def trainer_class(run_dir):
    torch.manual_seed(0)
    data = [(torch.randn(4, 3), torch.rand(4, 1) + 0.5) for _ in range(4)]
    data[2][1][1] = 0.0
    return Trainer(nn.Linear(3, 1), data, run_dir).fit()


@expect("divi 0|zero", "div", cure=False)
def learned_temperature(run_dir):
    torch.manual_seed(0)

    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.Linear(4, 4)
            self.temperature = nn.Parameter(torch.tensor(1.0))

        def forward(self, a, b):
            sim = F.normalize(self.tower(a), dim=-1) @ F.normalize(self.tower(b), dim=-1).T
            return sim / self.temperature  # born here: learned_temperature

    model = Clip()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = [(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(4)]
    guard = headway.Guard(model, opt, run_dir=run_dir)
    for i, (a, b) in enumerate(guard(data)):
        with torch.no_grad():
            model.temperature.clamp_(0.0, 10.0 if i < 2 else 0.0)
        logits = model(a, b)
        loss = F.cross_entropy(logits, torch.arange(4))
        opt.zero_grad()
        loss = loss + 1e-3 * our_losses.causal_prior(model)
        loss.backward()
        opt.step()
    guard.close()
    return guard
