"""An assertion in the model fails."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        assert self.calls < 6, "called too often"  # HERE
        return self.layer(x)


x, y = torch.randn(320, 10), torch.randint(0, 3, (320,))
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step, (inputs, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
