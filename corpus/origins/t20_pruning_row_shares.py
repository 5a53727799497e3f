"""Loop: for with pruning after every second step, in a function of its own.

Fault: rows of a weight are divided by their sum, 0 / 0, between two steps; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def prune_(layer, threshold):
    """Sets small weights to 0 and scales each row to its old sum of magnitudes."""
    with torch.no_grad():
        weight = layer.weight
        before = weight.abs().sum(dim=1, keepdim=True)
        weight[weight.abs() < threshold] = 0.0
        after = weight.abs().sum(dim=1, keepdim=True)
        weight.mul_(before / after)  # <- origin


def main():
    torch.manual_seed(420)
    net = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
    with torch.no_grad():
        net[0].weight[7] = 0.0
        net[2].weight[:, 7] = 0.0
        net[0].bias[7] = -1.0
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(48, 5), torch.randint(0, 2, (48,)))
    for step, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 1:
            prune_(net[0], threshold=1e-3)


main()
