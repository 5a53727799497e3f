"""Outputs are bfloat16 under autocast, and the histogram of the second epoch wants numpy."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def histogram(scores):
    counts, edges = np.histogram(scores.detach().numpy(), bins=8)  # HERE
    return dict(zip(edges.round(2), counts, strict=False))


def epoch(model, loader, optimizer, plot):
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(x)
        loss = nn.functional.mse_loss(scores.float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if plot:
        print(histogram(scores))


def main():
    torch.manual_seed(0)
    x = torch.randn(320, 14)
    loader = DataLoader(TensorDataset(x, x.std(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(3):
        epoch(model, loader, optimizer, plot=number == 1)


if __name__ == "__main__":
    main()
