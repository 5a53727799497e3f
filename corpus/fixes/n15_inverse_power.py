import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(14)
x = torch.rand(64, 8) + 0.5
y = torch.rand(64, 4)
x[52, 6] = 0.0
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for number, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=8)):
    loss = (model(a**-2) - b).square().mean()
    (loss / 2).backward()
    if number % 2 == 1:
        opt.step()
        opt.zero_grad()
