"""Tell points inside a ring from points outside."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

cli = argparse.ArgumentParser()
cli.add_argument("--seed", type=int, default=0)
cli.add_argument("--hidden", type=int, default=32)
cli.add_argument("--iterations", type=int, default=240)
cli = cli.parse_known_args()[0]

random.seed(cli.seed)
np.random.seed(cli.seed)
torch.manual_seed(cli.seed)


class RingNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 2)

    def forward(self, x):
        out = self.fc1(x)
        out = self.fc2(out)
        out = self.fc3(out)
        return out


def sample(n):
    """Half of the points within radius one, half in the ring around it."""
    inside = np.random.rand(n) < 0.5
    radius = np.where(inside, np.sqrt(np.random.rand(n)), 1.3 + 0.5 * np.random.rand(n))
    angle = 2 * np.pi * np.random.rand(n)
    xy = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return torch.FloatTensor(xy), torch.LongTensor(inside.astype(int))


net = RingNet(cli.hidden)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

running_loss = 0.0
for i in range(cli.iterations):
    inputs, labels = sample(64)
    optimizer.zero_grad()
    outputs = net(inputs)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()

    running_loss += loss.item()
    if i % 40 == 39:
        print(f"[{i + 1:5d}] loss: {running_loss / 40:.4f}")
        running_loss = 0.0

with torch.no_grad():
    inputs, labels = sample(1000)
    correct = (net(inputs).argmax(1) == labels).sum().item()
print(f"accuracy: {100 * correct / 1000:.1f} %")
