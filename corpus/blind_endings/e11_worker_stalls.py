"""A worker waits for ever for one sample (a network mount that does not answer)."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if index == 1203:
            print("hangs now", flush=True)
            time.sleep(100_000)  # HERE
        x = torch.tensor([index % 13, index % 7], dtype=torch.float32) / 10
        return x, x.sum().reshape(1)


def main():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Remote(), batch_size=20, num_workers=2):  # HERE
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
