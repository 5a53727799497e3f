"""Skip-gram vectors with negative sampling over a large vocabulary."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
V, D = 2000, 16


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(V, D)
        self.context = nn.Embedding(V, D)
        nn.init.uniform_(self.center.weight, -0.5, 0.5)
        nn.init.uniform_(self.context.weight, -0.5, 0.5)

    def forward(self, c, pos, neg):
        v = self.center(c)
        good = (v * self.context(pos)).sum(-1)
        bad = torch.einsum("bd,bkd->bk", v, self.context(neg))
        return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(-1)).mean()


model = SkipGram()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
zipf = 1.0 / torch.arange(1, V + 1).float()
for step in range(200):
    c = torch.multinomial(zipf, 64, replacement=True)
    pos = (c // 10) * 10 + torch.randint(0, 10, (64,))
    neg = torch.multinomial(zipf.sqrt(), 64 * 4, replacement=True).view(64, 4)
    loss = model(c, pos, neg)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
