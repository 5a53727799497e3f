"""Convolutions are exchanged for sparse ones by a wrapper, from command line options."""

import argparse

import torch
from torch import nn


class SparseConv2d(nn.Module):
    def __init__(self, conv, sparsity):
        super().__init__()
        self.weight = nn.Parameter(conv.weight.detach().clone())
        self.bias = nn.Parameter(conv.bias.detach().clone())
        limit = self.weight.abs().flatten().quantile(sparsity)
        self.register_buffer("mask", (self.weight.abs() >= limit).float())

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight * self.mask, self.bias, padding=1)


def replace_conv_recursively(module, sparsity):
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d):
            setattr(module, name, SparseConv2d(child, sparsity))
        else:
            replace_conv_recursively(child, sparsity)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()
        )
        self.classifier = nn.Linear(12, 4)

    def forward(self, x):
        return self.classifier(self.features(x).amax((2, 3)))


def get_optimizer(model, args):
    return torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--sparsity", type=float, default=0.4)
    args, _ = parser.parse_known_args()
    torch.manual_seed(0)
    model = Net()
    optimizer = get_optimizer(model, args)
    replace_conv_recursively(model, args.sparsity)
    labels = torch.randint(4, (160,))
    images = torch.randn(160, 1, 8, 8) * 0.3
    images[torch.arange(160), 0, labels, :] += 1.5
    for it in range(20):
        rows = torch.randint(160, (32,))
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
