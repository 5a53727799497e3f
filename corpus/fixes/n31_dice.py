import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(30)
x = torch.randn(64, 8)
y = torch.randint(0, 2, (64, 4)).float()
x[16:32] = -40.0
y[16:32] = 0.0
model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
nn.init.constant_(model[0].weight, 0.1)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for number, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=8)):
    p = model(a)
    overlap = 2 * (p * b).sum()
    loss = 1 - overlap / (p.sum() + b.sum())
    (loss / 2).backward()
    if number % 2 == 1:
        opt.step()
        opt.zero_grad()
