import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)
x = torch.randn(64, 8)
y = torch.randn(64, 8)
y[27] = 0.0
model = nn.Linear(8, 8)

opt = torch.optim.Adam(model.parameters(), lr=1e-3)


def train_step(a, b):
    h = model(a)
    cosine = (h * b).sum(1) / (h.norm(dim=1) * b.norm(dim=1))
    loss = (1 - cosine).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


losses = [train_step(a, b) for a, b in DataLoader(TensorDataset(x, y), batch_size=16)]
