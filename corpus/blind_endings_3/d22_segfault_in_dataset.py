"""The data set calls a C function with a null pointer, in the main process."""

import ctypes

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Native(Dataset):
    def __len__(self):
        return 300

    def read(self, index):
        address = 0 if index == 205 else ctypes.addressof(ctypes.create_string_buffer(b"row", 4))
        return ctypes.string_at(address)  # HERE

    def __getitem__(self, index):
        self.read(index)
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(9, generator=generator)
        return x, x.sum()


def main():
    torch.manual_seed(0)
    model = nn.Linear(9, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for x, y in DataLoader(Native(), batch_size=10, num_workers=0):
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
