"""Fine-tune a small residual network on a new label set."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class ResNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.layer1 = Block(12)
        self.layer2 = Block(12)
        self.fc = nn.Linear(12, n_classes)

    def forward(self, x):
        x = F.relu(self.bn(self.stem(x)))
        x = self.layer2(F.avg_pool2d(self.layer1(x), 2))
        return self.fc(x.mean((2, 3)))


def prepare_for_finetuning(model, n_classes):
    model.fc = nn.Linear(model.fc.in_features, n_classes)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            for p in module.parameters():
                p.requires_grad = False
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    y = torch.randint(0, 8, (512,))
    proto = torch.randn(8, 3, 12, 12)
    x = proto[y] + torch.randn(512, 3, 12, 12)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

    model = prepare_for_finetuning(ResNet(100), 8)
    optimizer = torch.optim.SGD(
        filter(lambda p: p.requires_grad, model.parameters()), lr=0.01, momentum=0.9
    )
    for epoch in range(4):
        model.train()
        losses = []
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"[epoch {epoch}] loss={np.mean(losses):.4f}")


if __name__ == "__main__":
    main()
