"""Loan default prediction from a numeric table."""

import argparse

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
rng = np.random.default_rng(args.seed)
torch.manual_seed(args.seed)

columns = ["income", "age", "balance", "late", "history", "score", "term", "default"]
n = 1500
table = rng.normal(size=(n, len(columns)))
risk = 0.5 * table[:, 3] - 0.4 * table[:, 0] + rng.logistic(size=n)
table[:, columns.index("default")] = (risk > 0).astype(float)

target = table[:, columns.index("default")]
features = (table - table.mean(0)) / table.std(0)

X = torch.tensor(features, dtype=torch.float32)
y = torch.tensor(target, dtype=torch.float32).unsqueeze(1)
X_train, y_train, X_val, y_val = X[:1200], y[:1200], X[1200:], y[1200:]

model = nn.Sequential(nn.Linear(len(columns), 32), nn.ReLU(), nn.Linear(32, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

for epoch in range(6):
    model.train()
    for idx in torch.randperm(len(X_train)).split(40):
        loss = criterion(model(X_train[idx]), y_train[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = model(X_val)
        val_loss = criterion(out, y_val)
        acc = ((out > 0) == (y_val > 0.5)).float().mean()
    print(f"epoch {epoch} train {loss.item():.4f} val {val_loss.item():.4f} acc {acc:.4f}")
