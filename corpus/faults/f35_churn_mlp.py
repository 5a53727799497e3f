"""Predict churn from customer features."""

import argparse
import random

import numpy as np
import torch
from torch import nn, optim

ap = argparse.ArgumentParser()
ap.add_argument("--seed", default=0, type=int)
ap.add_argument("--epochs", default=6, type=int)
ns = ap.parse_known_args()[0]

random.seed(ns.seed)
np.random.seed(ns.seed)
torch.manual_seed(ns.seed)

# Customers: 14 standardised features; churn depends on a few of them.
N = 1000
features = np.random.randn(N, 14)
score = features[:, 0] - 1.5 * features[:, 3] * features[:, 4] + 0.5 * features[:, 7]
churned = (score + 0.3 * np.random.randn(N) > 0).astype(np.float32)
X = torch.tensor(features, dtype=torch.float32)
Y = torch.tensor(churned).reshape(-1, 1)
X_train, X_test, Y_train, Y_test = X[:800], X[800:], Y[:800], Y[800:]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer_1 = nn.Linear(14, 64)
        self.layer_2 = nn.Linear(64, 64)
        self.layer_out = nn.Linear(64, 1)
        self.relu = nn.ReLU()
        self.softmax = nn.Softmax(dim=1)

    def forward(self, inputs):
        x = self.relu(self.layer_1(inputs))
        x = self.relu(self.layer_2(x))
        return self.softmax(self.layer_out(x))


model = Classifier()
criterion = nn.BCELoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3)

for e in range(ns.epochs):
    model.train()
    perm = torch.randperm(len(X_train))
    epoch_loss = 0.0
    for i in range(0, len(perm), 40):
        rows = perm[i : i + 40]
        optimizer.zero_grad()
        y_pred = model(X_train[rows])
        loss = criterion(y_pred, Y_train[rows])
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    model.eval()
    with torch.no_grad():
        acc = ((model(X_test) > 0.5).float() == Y_test).float().mean()
    print(f"Epoch {e + 1:02d} | loss {epoch_loss / 20:.5f} | acc {acc:.3f}")
