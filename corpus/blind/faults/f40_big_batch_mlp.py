"""Classifier trained with large batches."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader, lr=0.02):
        self.model, self.loader = model, loader
        self.criterion = nn.CrossEntropyLoss(reduction="sum")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def fit(self, epochs):
        step = 0
        for _ in range(epochs):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                if step % 5 == 0:
                    print(f"step {step} loss {loss.item():.2f}")
                step += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=128)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 10, (1280,))
    x = torch.randn(10, 32)[y] + torch.randn(1280, 32)
    dl = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    net = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    Trainer(net, dl).fit(5)
