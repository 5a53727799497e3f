import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()

loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    for i, (a, b) in enumerate(loader):
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
