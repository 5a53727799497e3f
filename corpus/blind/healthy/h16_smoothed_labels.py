"""CNN trained with label smoothing."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 8, (640,))
    x = torch.randn(8, 1, 10, 10)[y] + 0.6 * torch.randn(640, 1, 10, 10)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 8)
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(8):
        hits, total = 0, 0.0
        for xb, yb in loader:
            optimizer.zero_grad()
            out = model(xb)
            loss = criterion(out, yb)
            loss.backward()
            optimizer.step()
            hits += (out.argmax(1) == yb).sum().item()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} acc {hits / 640:.3f}")


if __name__ == "__main__":
    main()
