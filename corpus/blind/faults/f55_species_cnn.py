"""1-D CNN over call recordings of six species."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SPECIES = {
    "wren": (3.0, 0.2),
    "winter wren": (3.0, 0.2),
    "robin": (5.0, 0.5),
    "american robin": (5.0, 0.5),
    "thrush": (8.0, 0.1),
    "song thrush": (8.0, 0.1),
}


class Calls(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        t = np.linspace(0, 1, 48)
        names = list(SPECIES)
        self.y = rng.integers(0, len(names), n)
        rows = []
        for c in self.y:
            f, mod = SPECIES[names[c]]
            f = f * (1 + 0.03 * rng.normal())
            wave = np.sin(2 * np.pi * (f * t + mod * t**2) + rng.uniform(0, 0.5))
            rows.append(wave + 0.2 * rng.normal(size=48))
        self.x = torch.tensor(np.stack(rows), dtype=torch.float32).unsqueeze(1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 12, 7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(12, 24, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.fc = nn.Linear(24 * 12, len(SPECIES))

    def forward(self, x):
        return self.fc(self.features(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(Calls(960, args.seed), batch_size=48, shuffle=True)
    model = CallNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(10):
        total, hits = 0.0, 0
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            hits += (out.argmax(1) == y).sum().item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} acc {hits / 960:.3f}")


if __name__ == "__main__":
    main()
