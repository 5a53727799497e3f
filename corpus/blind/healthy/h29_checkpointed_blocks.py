"""Activation checkpointing: blocks run forward twice per step."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)


class Net(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(50, d)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(d),
                nn.Linear(d, 2 * d),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Linear(2 * d, d),
            )
            for _ in range(4)
        )
        self.out = nn.Linear(d, 5)

    def forward(self, tok):
        h = self.emb(tok)
        for block in self.blocks:
            h = h + checkpoint(block, h, use_reentrant=False)
        return self.out(h.mean(1))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(100):
    y = torch.randint(0, 5, (32,))
    tok = torch.randint(0, 50, (32, 10))
    hot = torch.rand(32, 10) < 0.5
    tok = torch.where(hot, y[:, None] * 10 + torch.randint(0, 10, (32, 10)), tok)
    loss = F.cross_entropy(model(tok), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
