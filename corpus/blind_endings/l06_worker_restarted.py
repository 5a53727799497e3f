"""A worker dies; the script makes a new loader and goes on."""

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Numbers(Dataset):
    deadly = True

    def __len__(self):
        return 600

    def __getitem__(self, index):
        if self.deadly and index == 300 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.tensor([index % 10 / 10.0, 1.0])
        return x, x[:1] * 3


def main():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Numbers()
    for _attempt in range(3):
        try:
            for x, y in DataLoader(data, batch_size=20, num_workers=1):
                loss = (model(x) - y).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            break
        except RuntimeError as error:
            print("again:", error)
            data.deadly = False


if __name__ == "__main__":
    main()
