"""Reaction-yield regression that tracks a fixed probe set while it trains."""

import argparse
from collections import defaultdict

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--steps", type=int, default=160)
args, _ = ap.parse_known_args()
torch.manual_seed(args.seed)


def reactions(n):
    conditions = torch.rand(n, 16) * 2 - 1
    yields = torch.sigmoid(2 * conditions[:, 0] - conditions[:, 1] * conditions[:, 2])
    return conditions, yields + 0.02 * torch.randn(n)


class YieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


x, y = reactions(2048)
probe_x, probe_y = reactions(1024)
model = YieldNet()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
history = defaultdict(list)

for step in range(args.steps):
    idx = torch.randint(0, len(x), (128,))
    loss = criterion(model(x[idx]), y[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history["train"].append(loss.item())
    history["probe"].append(criterion(model(probe_x), probe_y))
    if step % 20 == 19:
        train = sum(history["train"][-20:]) / 20
        probe = sum(history["probe"][-20:]) / 20
        print(f"step {step + 1}: train {train:.5f} probe {probe:.5f}")

best = min(range(args.steps), key=lambda i: history["probe"][i])
print(f"best probe loss at step {best}")
