"""A worker is killed with SIGKILL, as the kernel's OOM killer does."""

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 500 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)  # HERE
        x = torch.tensor([index / 1000.0, 1.0])
        return x, x[:1] * 3


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Numbers(), batch_size=20, num_workers=2):  # HERE
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
