"""Reads fail now and then and are tried again."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flaky(Dataset):
    def __init__(self):
        self.attempts = {}

    def __len__(self):
        return 640

    def read(self, index):
        self.attempts[index] = self.attempts.get(index, 0) + 1
        if index % 50 == 7 and self.attempts[index] < 3:
            raise OSError(f"sample {index}: connection reset")
        return torch.tensor([index % 5, index % 3], dtype=torch.float32)

    def __getitem__(self, index):
        for _attempt in range(5):
            try:
                x = self.read(index)
                break
            except OSError:
                continue
        return x, x.sum().reshape(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for x, y in DataLoader(Flaky(), batch_size=16, num_workers=2):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
