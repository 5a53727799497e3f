"""Fine-tune a small generator in half precision."""

import torch
from torch import nn

torch.manual_seed(0)


def build():
    return nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16))


mix = torch.randn(16, 16) / 4


def batch(n):
    noise = torch.randn(n, 16)
    return noise.half(), torch.tanh(noise @ mix).half()


model = build().half()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    picture, goal = batch(32)
    loss = nn.functional.mse_loss(model(picture), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
