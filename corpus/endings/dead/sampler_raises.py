"""The user's sampler raises."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Order(torch.utils.data.Sampler):
    def __len__(self):
        return 160

    def __iter__(self):
        for index in range(160):
            if index == 100:
                raise RuntimeError("no order left")  # HERE
            yield index


x, y = torch.randn(320, 10), torch.randint(0, 3, (320,))
loader = DataLoader(TensorDataset(x, y), batch_size=16, sampler=Order())
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step, (inputs, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
