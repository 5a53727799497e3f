"""House price model on standardised features and targets."""

import argparse

import numpy as np
import torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--seed", type=int, default=0)
p.add_argument("--lr", type=float, default=0.01)
p.add_argument("--batch", type=int, default=256)
p.add_argument("--epochs", type=int, default=25)
a, _ = p.parse_known_args()

np.random.seed(a.seed)
torch.manual_seed(a.seed)

n = 2048
area = np.random.gamma(6, 20, n)
rooms = np.round(area / 25 + np.random.randn(n))
age = np.random.uniform(0, 90, n)
dist_centre = np.random.exponential(6, n)
garden = (np.random.rand(n) < 0.4).astype(float)
price = 3.2 * area + 12 * rooms - 0.9 * age - 14 * np.log1p(dist_centre) + 25 * garden
price = price * (1 + 0.08 * np.random.randn(n))

features = np.stack([area, rooms, age, dist_centre, garden], axis=1)
features = (features - features.mean(0)) / features.std(0)
target = (price - price.mean()) / price.std()
X = torch.tensor(features, dtype=torch.float32)
y = torch.tensor(target, dtype=torch.float32).view(-1, 1)
X_train, y_train, X_test, y_test = X[:1792], y[:1792], X[1792:], y[1792:]

model = nn.Sequential(
    nn.Linear(5, 64),
    nn.Tanh(),
    nn.Linear(64, 64),
    nn.Tanh(),
    nn.Linear(64, 1),
)
loss_fn = nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=a.lr)

for epoch in range(a.epochs):
    perm = torch.randperm(len(X_train))
    total = 0.0
    for i in range(0, len(X_train), a.batch):
        rows = perm[i : i + a.batch]
        prediction = model(X_train[rows])
        loss = loss_fn(prediction, y_train[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if epoch % 2 == 0:
        with torch.no_grad():
            test = nn.functional.mse_loss(model(X_test), y_test).item()
        print(f"epoch {epoch:3d}  train {total / len(X_train):.4f}  test {test:.4f}")
