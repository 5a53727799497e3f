"""Deep network in the classic style."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def build(n_layers, width, n_in, n_out):
    layers = [nn.Linear(n_in, width), nn.Sigmoid()]
    for _ in range(n_layers - 1):
        layers.append(nn.Linear(width, width))
        layers.append(nn.Sigmoid())
    layers.append(nn.Linear(width, n_out))
    return nn.Sequential(*layers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=8)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 4, (800,))
    x = 1.5 * torch.randn(4, 16)[y] + torch.randn(800, 16)
    loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
    net = build(args.layers, 32, 16, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(5):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = loss_fn(net(xb), yb)
            loss.backward()
            optimizer.step()
        first, last = net[0].weight.grad.norm(), net[-1].weight.grad.norm()
        print(f"epoch {epoch} loss {loss.item():.4f} first {first:.1e} last {last:.1e}")


if __name__ == "__main__":
    main()
