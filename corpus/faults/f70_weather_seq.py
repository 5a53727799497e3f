"""Classify weather stations by a week of readings, time-major LSTM."""

import argparse

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--hidden", type=int, default=32)
parser.add_argument("--epochs", type=int, default=10)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)

T, FEATS, CLASSES = 14, 4, 4


def stations(n):
    kind = rng.integers(0, CLASSES, n)
    t = np.arange(T)
    x = 0.5 * rng.standard_normal((n, T, FEATS))
    x[:, :, 0] += np.sin(t[None] * (0.4 + 0.35 * kind[:, None]))
    x[:, :, 1] += np.linspace(-1, 1, T)[None] * (kind[:, None] - 1.5)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(kind)


class StationModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATS, args.hidden)
        self.norm = nn.LayerNorm(args.hidden)
        self.fc = nn.Linear(args.hidden, CLASSES)

    def forward(self, x):
        n = x.shape[0]
        states, _ = self.lstm(x.transpose(0, 1).contiguous())
        states = states.view(n, T, args.hidden)
        return self.fc(self.norm(states).mean(dim=1))


x, y = stations(1024)
model = StationModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    order = torch.randperm(896)
    epoch_loss = 0.0
    for k in range(0, 896, 64):
        sel = order[k : k + 64]
        optimizer.zero_grad()
        loss = loss_fn(model(x[sel]), y[sel])
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() / 14
    with torch.no_grad():
        acc = (model(x[896:]).argmax(1) == y[896:]).float().mean().item()
    print(f"epoch {epoch:2d} train loss {epoch_loss:.4f} held-out accuracy {acc:.3f}")
