"""Train a classifier on top of a frozen feature extractor."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Extractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh())

    def forward(self, x):
        return self.body(x)


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        for p in self.backbone.parameters():
            p.requires_grad = False
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x):
        with torch.no_grad():
            f = self.backbone(x)
        return self.head(f)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 5, (600,))
    x = 1.5 * torch.randn(5, 20)[y] + torch.randn(600, 20)
    loader = DataLoader(TensorDataset(x, y), batch_size=30, shuffle=True)
    model = Classifier(Extractor(), 5)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(5):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
