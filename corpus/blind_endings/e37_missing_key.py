"""A batch of the second data set has no field "mask"."""

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset


class Records(Dataset):
    def __init__(self, count, fields):
        g = torch.Generator().manual_seed(count)
        self.x = torch.randn(count, 6, generator=g)
        self.fields = fields

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        record = {"input": x, "target": x.sum().reshape(1), "mask": torch.ones(1)}
        return {name: record[name] for name in self.fields}


def train_step(model, batch):
    prediction = model(batch["input"])
    error = (prediction - batch["target"]).square()
    return (error * batch["mask"]).sum() / batch["mask"].sum()  # HERE


torch.manual_seed(0)
data = ConcatDataset([Records(320, ["input", "target", "mask"]), Records(160, ["input", "target"])])
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for batch in DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    train_step(model, batch).backward()
    optimizer.step()
