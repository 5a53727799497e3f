"""The second loader is shorter than the first."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    labelled = DataLoader(TensorDataset(torch.randn(640, 4)), batch_size=16)
    unlabelled = DataLoader(TensorDataset(torch.randn(400, 4)), batch_size=16)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    other = iter(unlabelled)
    for (x,) in labelled:
        (u,) = next(other)  # HERE
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss = loss + 0.1 * (model(u) - u.sum(1, keepdim=True)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
