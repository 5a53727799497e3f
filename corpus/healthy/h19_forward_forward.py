"""Forward-forward learning: every layer has a local goal and an optimizer of its own."""

import argparse
import random
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 5


class LocalLayer(nn.Module):
    """High goodness for true labels, low for false ones."""

    def __init__(self, inputs, units, lr=5e-3, threshold=1.0):
        super().__init__()
        self.linear = nn.Linear(inputs, units)
        self.threshold = threshold
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr)

    def forward(self, x):
        direction = x / (x.norm(dim=1, keepdim=True) + 1e-4) * x.shape[1] ** 0.5
        return F.leaky_relu(self.linear(direction), 0.1)

    def train_step(self, positive, negative):
        good = self.forward(positive).pow(2).mean(dim=1)
        bad = self.forward(negative).pow(2).mean(dim=1)
        loss = F.softplus(torch.cat([self.threshold - good, bad - self.threshold])).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            return self.forward(positive), self.forward(negative), loss.item()


class ForwardForward:
    def __init__(self, sizes):
        self.layers = [LocalLayer(a, b) for a, b in pairwise(sizes)]

    def update(self, positive, negative):
        losses = []
        for layer in self.layers:
            positive, negative, loss = layer.train_step(positive, negative)
            losses.append(loss)
        return losses

    @torch.no_grad()
    def predict(self, x):
        scores = []
        for label in range(CLASSES):
            h = overlay(x, torch.full((len(x),), label))
            total = 0
            for layer in self.layers:
                h = layer(h)
                total = total + h.pow(2).mean(dim=1)
            scores.append(total)
        return torch.stack(scores, dim=1).argmax(dim=1)


def overlay(x, label):
    return torch.cat([x, 3 * F.one_hot(label, CLASSES).float()], dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    centres = torch.randn(CLASSES, 20)
    y = torch.randint(0, CLASSES, (1600,))
    x = centres[y] + 0.5 * torch.randn(1600, 20)
    net = ForwardForward([20 + CLASSES, 96, 96])
    for epoch in range(5):
        order = torch.randperm(1400)
        for rows in order.split(40):
            other = (y[rows] + torch.randint(1, CLASSES, (len(rows),))) % CLASSES
            losses = net.update(overlay(x[rows], y[rows]), overlay(x[rows], other))
        accuracy = (net.predict(x[1400:]) == y[1400:]).float().mean().item()
        shown = ", ".join(f"{loss:.3f}" for loss in losses)
        print(f"epoch {epoch}: layer losses {shown}; held-out accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
