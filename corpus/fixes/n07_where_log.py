import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[19] = 0.0
model = nn.Linear(8, 8, bias=False)
nn.init.eye_(model.weight)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for number, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=8)):
    h = model(a.abs())
    logs = torch.where(h > 0, torch.log(h), torch.zeros_like(h))
    loss = (logs[:, :4] - b).square().mean()
    (loss / 2).backward()
    if number % 2 == 1:
        opt.step()
        opt.zero_grad()
