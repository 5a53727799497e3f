"""Encoder plus classification head on tabular data."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ap = argparse.ArgumentParser()
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--lr", type=float, default=1e-3)
ap.add_argument("--epochs", type=int, default=5)
args, _ = ap.parse_known_args()
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)


class Encoder(nn.Module):
    def __init__(self, in_dim=20, dim=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(in_dim, 64), nn.ReLU(), nn.Linear(64, dim), nn.LayerNorm(dim)
        )

    def forward(self, x):
        return self.net(x)


centers = torch.randn(6, 20)
labels = torch.randint(0, 6, (900,))
features = centers[labels] + 0.8 * torch.randn(900, 20)
train_loader = DataLoader(TensorDataset(features, labels), batch_size=30, shuffle=True)

encoder = Encoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=args.lr, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss()
classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 6))

for epoch in range(args.epochs):
    encoder.train()
    classifier.train()
    running, correct = 0.0, 0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        out = classifier(encoder(xb))
        loss = criterion(out, yb)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(xb)
        correct += (out.argmax(1) == yb).sum().item()
    print(f"epoch {epoch + 1} loss {running / 900:.3f} acc {correct / 900:.3f}")
print("head weight norm", classifier[1].weight.norm().item())
