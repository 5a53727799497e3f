"""The same with a timeout on the loader: the loader raises by itself."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index == 250:
            time.sleep(60)
        x = torch.tensor([index % 5, 1.0])
        return x, x[:1] * 0.5


def main():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = DataLoader(Slow(), batch_size=10, num_workers=1, timeout=3)
    for x, y in loader:  # HERE
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
