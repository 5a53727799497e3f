import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(24)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[48] = 0.0
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16):
        opt.zero_grad()
        size = torch.linalg.norm(model(a), dim=-1)
        loss = (size - b[:, 0].abs()).square().mean()
        loss.backward()
        opt.step()
