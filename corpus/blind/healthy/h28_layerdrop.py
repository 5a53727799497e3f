"""Residual MLP with LayerDrop: some blocks are skipped at random."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class Net(nn.Module):
    def __init__(self, d=32, depth=6, layerdrop=0.3):
        super().__init__()
        self.inp = nn.Linear(16, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, 5)
        self.layerdrop = layerdrop

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            if self.training and torch.rand(()).item() < self.layerdrop:
                continue
            x = block(x)
        return self.head(x)


y = torch.randint(0, 5, (600,))
x = 1.5 * torch.randn(5, 16)[y] + torch.randn(600, 16)
model = Net().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(120):
    idx = torch.randint(0, 600, (32,))
    loss = F.cross_entropy(model(x[idx]), y[idx])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.4f}")
