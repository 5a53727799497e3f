"""Separate two rings with a three layer network."""

import argparse
import math

import torch
import torch.nn as nn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)

n = 800
y = torch.randint(0, 2, (n,))
radius = torch.where(y == 1, 2.0, 0.8) + 0.1 * torch.randn(n)
angle = torch.rand(n) * 2 * math.pi
x = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(2, 32)
        self.fc2 = nn.Linear(32, 32)
        self.fc3 = nn.Linear(32, 2)

    def forward(self, x):
        x = self.fc1(x)
        x = self.fc2(x)
        x = self.fc3(x)
        return x


net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(net.parameters(), lr=0.01)

for epoch in range(1, 7):
    hits = 0
    for idx in torch.randperm(n).split(40):
        optimizer.zero_grad()
        out = net(x[idx])
        loss = criterion(out, y[idx])
        loss.backward()
        optimizer.step()
        hits += (out.argmax(1) == y[idx]).sum().item()
    print(f"epoch {epoch} loss {loss.item():.4f} acc {hits / n:.3f}")
