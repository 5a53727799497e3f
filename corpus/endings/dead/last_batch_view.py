"""The last batch has 6 rows, and the model expects 64."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

x, y = torch.randn(64 * 6 + 6, 10), torch.randint(0, 3, (64 * 6 + 6,))
loader = DataLoader(TensorDataset(x, y), batch_size=64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 3)

    def forward(self, x):
        return self.layer(x).view(64, 3)  # HERE


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step, (inputs, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
