"""Training and validation loaders with workers are made anew in every epoch; the workers end
each time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def run(model, loader, optimizer=None):
    total = 0.0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
    return total / len(loader)


def main():
    torch.manual_seed(0)
    x = torch.randn(640, 6)
    train, held_out = random_split(TensorDataset(x, x[:, :1] - x[:, 1:2]), [512, 128])
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        fitted = run(model, DataLoader(train, 32, shuffle=True, num_workers=2), optimizer)
        print(epoch, fitted, run(model, DataLoader(held_out, 64, num_workers=1)))


if __name__ == "__main__":
    main()
