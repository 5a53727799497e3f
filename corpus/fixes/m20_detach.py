import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()

loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
opt = torch.optim.SGD(student.parameters(), lr=0.01)
for epoch in range(4):
    for a, b in loader:
        opt.zero_grad()
        target = teacher(a)
        loss = F.mse_loss(student(a), target)
        loss.backward()
        opt.step()
