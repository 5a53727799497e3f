# Residual tower whose branches start at exactly nothing (ReZero gain and zeroed last layer).
import argparse
import math

import torch
from torch import nn, optim

cli = argparse.ArgumentParser()
cli.add_argument("--seed", type=int, default=0)
cli.add_argument("--depth", type=int, default=8)
cli.add_argument("--width", type=int, default=48)
cli.add_argument("--steps", type=int, default=200)
cfg, _ = cli.parse_known_args()
torch.manual_seed(cfg.seed)


class ZeroBranch(nn.Module):
    def __init__(self, width, use_gain):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.zeros(())) if use_gain else None
        if not use_gain:
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

    def forward(self, x):
        h = self.b(nn.functional.gelu(self.a(x)))
        return x + (h if self.gain is None else self.gain * h)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(10, cfg.width)
        self.tower = nn.Sequential(*[ZeroBranch(cfg.width, i % 2 == 0) for i in range(cfg.depth)])
        self.head = nn.Linear(cfg.width, 1)

    def forward(self, x):
        return self.head(self.tower(self.stem(x)))


def target(x):
    y = torch.sin(2 * x[:, :2]).sum(1) + x[:, 2] * x[:, 3] - (x[:, 4] - x[:, 5]).abs()
    return (y / 1.5).unsqueeze(1)


net = Tower()
opt = optim.AdamW(net.parameters(), lr=2e-3)
ramp = optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
tracked = 0.0
for step in range(cfg.steps):
    x = torch.randn(96, 10)
    loss = nn.functional.mse_loss(net(x), target(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
    ramp.step()
    tracked = loss.item() if step == 0 else 0.95 * tracked + 0.05 * loss.item()
    if step % 20 == 0:
        gains = [b.gain.item() for b in net.tower if b.gain is not None]
        size = math.sqrt(sum(g * g for g in gains) / len(gains))
        print(f"{step:4d} loss {tracked:.4f} rms gain {size:.4f}")
