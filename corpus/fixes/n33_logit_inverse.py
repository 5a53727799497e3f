import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(32)
x = torch.rand(64, 8) * 0.8 + 0.1
y = torch.randn(64, 4)
x[31, 3] = 1.0
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16):
        opt.zero_grad()
        odds = torch.log(a / (1 - a))
        loss = (model(odds) - b).square().mean()
        loss.backward()
        opt.step()
