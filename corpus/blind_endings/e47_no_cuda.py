"""The model is moved to a device that this machine does not have, before the first step."""

import torch
from torch import nn


def build(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model.to(device)  # HERE


def main():
    model = build("cuda:0")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(40):
        x = torch.randn(16, 4, device="cuda:0")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
