"""The data set catches its own errors."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Numbers(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        if index == 101:
            try:
                raise OSError("cannot read")
            except OSError:
                index = 0
        return torch.randn(10), index % 3


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=16, num_workers=2)
    model = nn.Linear(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
