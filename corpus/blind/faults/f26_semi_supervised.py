"""Classifier with a consistency term that is ramped up over training."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.fc = nn.Linear(64, 4)

    def forward(self, x):
        return self.fc(self.body(x))


def ramp_up(epoch, epochs):
    return epoch // epochs


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--lambda-u", type=float, default=5.0)
    args, _ = p.parse_known_args()
    torch.manual_seed(args.seed)

    centers = 1.5 * torch.randn(4, 16)
    y = torch.randint(0, 4, (80,))
    labelled = centers[y] + torch.randn(80, 16)
    unlabelled = centers[torch.randint(0, 4, (800,))] + torch.randn(800, 16)

    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        w = args.lambda_u * ramp_up(epoch, args.epochs)
        for i in range(10):
            ix = torch.randint(0, 80, (20,))
            iu = torch.randint(0, 800, (80,))
            sup_loss = F.cross_entropy(net(labelled[ix]), y[ix])
            u = unlabelled[iu]
            p1 = F.softmax(net(u + 0.3 * torch.randn_like(u)), dim=1)
            p2 = F.softmax(net(u + 0.3 * torch.randn_like(u)), dim=1)
            consistency_loss = F.mse_loss(p1, p2)
            loss = sup_loss + w * consistency_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(
            f"epoch {epoch} sup {sup_loss.item():.4f} cons {consistency_loss.item():.5f}"
            f" total {loss.item():.4f}"
        )


if __name__ == "__main__":
    main()
