"""Samples of different lengths cannot be stacked."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Numbers(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        return torch.randn(10 + (index == 101)), index % 3


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=16)
    model = nn.Linear(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, labels) in enumerate(loader):  # HERE
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
