"""CNN with batch norm and dropout; validation after every epoch."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(12 * 16, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
        return self.fc(self.drop(x.flatten(1)))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    loss = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader)
    return loss / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 5, (700,))
    x = torch.randn(5, 1, 8, 8)[y] + torch.randn(700, 1, 8, 8)
    train_loader = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=25, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[500:], y[500:]), batch_size=50)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for epoch in range(5):
        for xb, yb in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} train {loss.item():.4f} val {validate(model, val_loader):.4f}")


if __name__ == "__main__":
    main()
