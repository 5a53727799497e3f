"""A native decoder crashes in a worker."""

import ctypes

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def decode(index):
    if index == 333:
        return ctypes.string_at(0)  # HERE
    return bytes([index % 256, (index * 7) % 256])


class Encoded(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        first, second = decode(index)
        return torch.tensor([first / 256, second / 256]), torch.tensor([(first + second) / 512])


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in DataLoader(Encoded(), batch_size=16, num_workers=1):  # HERE
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    train()
