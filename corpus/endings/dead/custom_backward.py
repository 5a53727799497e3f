"""The backward of an autograd function raises."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if Scale.calls == 5:
            raise ValueError("no gradient for this")  # HERE
        Scale.calls += 1
        return grad * 2


Scale.calls = 0

x, y = torch.randn(320, 10), torch.randint(0, 3, (320,))
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step, (inputs, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(Scale.apply(model(inputs)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
