"""worker_init_fn reads a setting that is not there."""

import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def seed_worker(worker_id):
    random.seed(int(os.environ["DATA_SEED_OF_THIS_RUN"]) + worker_id)  # HERE


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        TensorDataset(torch.randn(160, 6)), batch_size=8, num_workers=2, worker_init_fn=seed_worker
    )
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for (x,) in loader:
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
