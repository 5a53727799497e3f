"""The scheduler ends the job with SIGTERM."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = torch.randn(6400, 8)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = 0
    for _epoch in range(10):
        for (x,) in DataLoader(TensorDataset(data), batch_size=32, num_workers=1):
            loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.02)
            seen += 1
            if seen == 60:
                print("signal me", flush=True)


if __name__ == "__main__":
    main()
