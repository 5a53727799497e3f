"""Two interleaved half circles, with a momentum optimizer of our own."""

import argparse
import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer


class Momentum(Optimizer):
    """Heavy-ball momentum with bias correction."""

    def __init__(self, params, lr=0.02, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["average"] = torch.zeros_like(p)
                state["step"] += 1
                average = state["average"]
                average.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                correction = 1 - group["beta"] ** state["step"]
                p.add_(average, alpha=group["lr"] / correction)
        return loss


def half_circles(n, noise=0.12):
    angle = torch.rand(n) * math.pi
    label = torch.randint(0, 2, (n,))
    x = torch.where(label == 0, torch.cos(angle), 1 - torch.cos(angle))
    y = torch.where(label == 0, torch.sin(angle), 0.5 - torch.sin(angle))
    points = torch.stack([x, y], dim=1) + noise * torch.randn(n, 2)
    return (points - points.mean(0)) / points.std(0), label


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

points, label = half_circles(1200)
net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
opt = Momentum(net.parameters(), lr=0.02)

batch = 60
for epoch in range(6):
    order = torch.randperm(len(points))
    losses = []
    for start in range(0, len(points), batch):
        pick = order[start : start + batch]
        opt.zero_grad()
        loss = F.cross_entropy(net(points[pick]), label[pick])
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {np.mean(losses):.4f}")
