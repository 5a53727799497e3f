import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
x = torch.randn(64, 8)
y = torch.randn(64, 8)
keep = torch.rand(64, 8) > 0.4
keep[:, 0] = True
keep[22] = False
x = torch.where(keep, x, torch.full_like(x, -99.0))
model = nn.Linear(8, 8)

opt = torch.optim.Adam(model.parameters(), lr=1e-3)


def train_step(a, b):
    mask = a > -90
    scores = model(a.clamp_min(-3)).masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    loss = (weights - b).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


losses = [train_step(a, b) for a, b in DataLoader(TensorDataset(x, y), batch_size=16)]
