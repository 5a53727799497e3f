"""Transformer encoder classifier with a linear warm-up."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)


class Net(nn.Module):
    def __init__(self, vocab=40, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.1, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(d, 4)

    def forward(self, x):
        return self.out(self.enc(self.emb(x)).mean(1))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
warmup, total = 30, 160
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: s / warmup if s < warmup else (total - s) / (total - warmup) * 0.9 + 0.1
)
for step in range(total):
    y = torch.randint(0, 4, (32,))
    x = torch.randint(0, 40, (32, 12))
    hot = torch.rand(32, 12) < 0.6
    x = torch.where(hot, y[:, None] * 10 + torch.randint(0, 10, (32, 12)), x)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
