"""Image classifier with an auxiliary head half-way up, in the manner of Inception."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--aux-weight", type=float, default=0.4)
    return p.parse_known_args()[0]


class Net(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.low = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.mid = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.high = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
        self.aux_head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 9, 32), nn.ReLU())
        self.aux_out = nn.Linear(32, classes)
        self.out = nn.Linear(32, classes)

    def forward(self, x):
        middle = self.mid(self.low(x))
        top = self.high(middle).mean(dim=(2, 3))
        return self.out(top), self.aux_out(self.aux_head(middle))


def make_images(n):
    templates = torch.randn(8, 3, 12, 12)
    labels = torch.randint(0, 8, (n,))
    return templates[labels] + torch.randn(n, 3, 12, 12), labels


def compute_loss(model, images, labels, aux_weight):
    logits, aux_logits = model(images)
    loss = F.cross_entropy(logits, labels)
    aux_loss = F.cross_entropy(aux_logits, labels)
    loss.add(aux_weight * aux_loss)
    return loss, {"main": loss.item(), "aux": aux_loss.item()}


args = parse()
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

images, labels = make_images(1024)
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(args.epochs):
    model.train()
    for i, (x, y) in enumerate(loader):
        loss, parts = compute_loss(model, x, y, args.aux_weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 16 == 0:
            print(f"{epoch}/{i}  main {parts['main']:.4f}  aux {parts['aux']:.4f}")
