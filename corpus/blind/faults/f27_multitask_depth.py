"""Two-task network: class of the scene and a depth vector, shared trunk."""

import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Weights:
    cls: float = 1.0
    depth: float = 5000.0


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16), nn.ReLU())
        self.cls_head = nn.Linear(16, 6)
        self.depth_head = nn.Linear(16, 12)

    def forward(self, x):
        h = self.trunk(x)
        return {"cls": self.cls_head(h), "depth": self.depth_head(h)}


class MultiTaskLoss(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.w = weights
        self.ce = nn.CrossEntropyLoss()
        self.mse = nn.MSELoss()

    def forward(self, out, y, depth):
        losses = {"cls": self.ce(out["cls"], y), "depth": self.mse(out["depth"], depth)}
        total = self.w.cls * losses["cls"] + self.w.depth * losses["depth"]
        return total, losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    x = torch.randn(1000, 24)
    y = (x @ torch.randn(24, 6)).argmax(1)
    depth = torch.tanh(x @ torch.randn(24, 12)) + 0.3 * torch.randn(1000, 12)
    loader = DataLoader(TensorDataset(x, y, depth), batch_size=50, shuffle=True)
    model, criterion = MultiTask(), MultiTaskLoss(Weights())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(8):
        for xb, yb, db in loader:
            total, losses = criterion(model(xb), yb, db)
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        parts = " ".join(f"{k} {v.item():.4f}" for k, v in losses.items())
        print(f"epoch {epoch} total {total.item():.2f} {parts}")


if __name__ == "__main__":
    main()
