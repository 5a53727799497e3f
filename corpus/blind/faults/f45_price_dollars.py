"""Predict sale prices from standardised features."""

import argparse

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=6)
args, _ = parser.parse_known_args()
np.random.seed(args.seed)
torch.manual_seed(args.seed)

raw = np.random.rand(640, 7) * [3000, 6, 4, 50, 2, 10, 1]
price = 80000 + 95 * raw[:, 0] + 12000 * raw[:, 1] - 900 * raw[:, 3]
price = price + np.random.randn(640) * 8000
X = (raw - raw.mean(0)) / raw.std(0)

X = torch.tensor(X, dtype=torch.float32)
y = torch.tensor(price, dtype=torch.float32).reshape(-1, 1)

model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(args.epochs):
    perm = torch.randperm(X.size(0))
    for i in range(0, X.size(0), 32):
        idx = perm[i : i + 32]
        optimizer.zero_grad()
        loss = criterion(model(X[idx]), y[idx])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.1f}")
