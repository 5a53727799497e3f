"""Memorise a small truth table: the loss ends at zero."""

import argparse
import itertools

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
bits = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
parity = (bits.sum(1) % 2).long()
x = bits * 2 - 1

net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
for epoch in range(200):
    out = net(x)
    loss = criterion(out, parity)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 20 == 0:
        acc = (out.argmax(1) == parity).float().mean()
        print(f"epoch {epoch} loss {loss.item():.6f} acc {acc:.2f}")

with torch.no_grad():
    table = net(x).softmax(1)[:, 1]
for row, p in zip(bits.int().tolist(), table.tolist()):
    print("".join(map(str, row)), f"{p:.3f}")
