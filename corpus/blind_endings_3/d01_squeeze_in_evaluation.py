"""A classifier of tabular rows: train and evaluate functions, settings from the command line."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 12, generator=generator)
    y = (x[:, :3].sum(1) > 0).float()
    return TensorDataset(x, y)


def train(args, model, loader, optimizer, epoch):
    model.train()
    for i, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(output, target)
        loss.backward()
        optimizer.step()
        if i % args.log_interval == 0:
            print(f"epoch {epoch} [{i * len(data)}/{len(loader.dataset)}] loss {loss.item():.4f}")


def evaluate(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for data, target in loader:
            output = model(data).squeeze()
            total += F.binary_cross_entropy_with_logits(output, target).item()  # HERE
    print(f"validation loss {total / len(loader):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(1)
    train_loader = DataLoader(make_data(640, 0), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(make_data(97, 1), batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        train(args, model, train_loader, optimizer, epoch)
        evaluate(model, val_loader)


if __name__ == "__main__":
    main()
