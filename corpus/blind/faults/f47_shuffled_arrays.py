"""Train on arrays that are shuffled once before batching."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
np.random.seed(args.seed)
torch.manual_seed(args.seed)

n_classes, n = 5, 1000
protos = 2.0 * np.random.randn(n_classes, 20)
y_train = np.repeat(np.arange(n_classes), n // n_classes)
x_train = protos[y_train] + np.random.randn(n, 20)

# the file on disk is sorted by class
np.random.shuffle(x_train)
np.random.shuffle(y_train)

x_train = torch.tensor(x_train, dtype=torch.float32)
y_train = torch.tensor(y_train)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 64)
        self.fc2 = nn.Linear(64, n_classes)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


model = MLP()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batch_size = 40
for epoch in range(8):
    correct = 0
    for b in range(n // batch_size):
        xb = x_train[b * batch_size : (b + 1) * batch_size]
        yb = y_train[b * batch_size : (b + 1) * batch_size]
        out = model(xb)
        loss = F.cross_entropy(out, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == yb).sum().item()
    perm = torch.randperm(n)
    x_train, y_train = x_train[perm], y_train[perm]
    print(f"epoch {epoch} loss {loss.item():.4f} acc {correct / n:.3f}")
