"""A sample of the data set raises, in the main process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Numbers(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        if index == 101:
            raise ValueError(f"cannot read sample {index}")  # HERE
        return torch.randn(10), index % 3


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=16)
    model = nn.Linear(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
