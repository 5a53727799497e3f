import argparse
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

ap = argparse.ArgumentParser()
ap.add_argument("--seed", default=0, type=int)
ap.add_argument("--epochs", default=8, type=int)
args = ap.parse_known_args()[0]
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)


class Gestures(Dataset):
    """Accelerometer traces: 3 axes, 40 samples, five gestures."""

    def __init__(self, n):
        self.items = []
        t = np.linspace(0, 1, 40)
        for _ in range(n):
            label = np.random.randint(5)
            phase, speed = np.random.rand() * 6.28, 1 + 0.1 * np.random.randn()
            trace = np.stack(
                [
                    np.sin(2 * np.pi * (label + 1) * speed * t + phase),
                    np.cos(2 * np.pi * (label % 3 + 1) * speed * t + phase),
                    np.random.randn(40) * 0.3,
                ],
                axis=1,
            )
            self.items.append((trace + 0.2 * np.random.randn(40, 3), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        trace, label = self.items[i]
        return torch.tensor(trace, dtype=torch.float32), label


class GestureNet(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.encoder = nn.GRU(3, hidden, batch_first=True)
        self.classifier = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 5))

    def percentile_pool(self, states):
        """Robust pooling: the 90th percentile of each unit over time."""
        pooled = np.percentile(states.detach().numpy(), 90, axis=1).astype(np.float32)
        return torch.from_numpy(pooled)

    def forward(self, x):
        states, _ = self.encoder(x)
        return self.classifier(self.percentile_pool(states))


train_loader = DataLoader(Gestures(640), batch_size=32, shuffle=True)
val_loader = DataLoader(Gestures(160), batch_size=80)
model = GestureNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(1, args.epochs + 1):
    model.train()
    train_loss = 0.0
    for traces, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(traces), labels)
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
    model.eval()
    hits = 0
    with torch.no_grad():
        for traces, labels in val_loader:
            hits += (model(traces).argmax(1) == labels).sum().item()
    print(f"epoch {epoch} loss {train_loss / len(train_loader):.4f} val_acc {hits / 160:.3f}")
