"""Spam / not spam with a small feed-forward network."""

import argparse

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
np.random.seed(args.seed)
torch.manual_seed(args.seed)

n = 1000
features = np.random.randn(n, 30).astype("float32")
is_spam = (features[:, :5].sum(1) + 0.5 * np.random.randn(n) > 0).astype("float32")
X = torch.from_numpy(features)
Y = torch.from_numpy(is_spam).view(-1, 1)

model = nn.Sequential(
    nn.Linear(30, 64),
    nn.ReLU(),
    nn.Linear(64, 1),
)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

batch_size = 50
for epoch in range(5):
    for start in range(0, n, batch_size):
        xb, yb = X[start : start + batch_size], Y[start : start + batch_size]
        pred = model(xb)
        loss = loss_fn(pred, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        acc = ((model(X) > 0).float() == Y).float().mean()
    print(f"Epoch {epoch}: loss = {loss.item():.4f}, accuracy = {acc:.3f}")
    order = torch.randperm(n)
    X, Y = X[order], Y[order]
