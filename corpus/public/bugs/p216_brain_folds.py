"""Five folds of scans, a training for each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
scans = torch.randn(200, 1, 6, 6)
sick = (scans[:, 0, :3, :3].mean((1, 2)) + 0.2 * torch.randn(200) > 0).long()
data = TensorDataset(scans, sick)


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 24), nn.ReLU(),
        nn.Linear(24, 2),
    )  # fmt: skip


def train(model, loader, epochs=2):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / 40


folds = torch.randperm(len(data)).chunk(5)
model = build()
for k, held_out in enumerate(folds):
    rows = torch.cat([fold for j, fold in enumerate(folds) if j != k])
    train_loader = DataLoader(Subset(data, rows.tolist()), batch_size=20, shuffle=True)
    test_loader = DataLoader(Subset(data, held_out.tolist()), batch_size=40)
    train(model, train_loader)
    print(k, evaluate(model, test_loader))
