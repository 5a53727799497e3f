"""A GradScaler loop: the logging of the gradient norm unscales, and so does the clipping."""

import torch
from torch import nn

LOG_EVERY = 25


def norm_of(model, scaler, optimizer):
    scaler.unscale_(optimizer)
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()


def clip(model, scaler, optimizer, limit):
    scaler.unscale_(optimizer)  # HERE
    nn.utils.clip_grad_norm_(model.parameters(), limit)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(11, 22), nn.LeakyReLU(), nn.Linear(22, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for step in range(1, 80):
    x = torch.randn(18, 11)
    loss = nn.functional.mse_loss(model(x), x.amax(1, keepdim=True))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if step % LOG_EVERY == 0:
        print(step, loss.item(), norm_of(model, scaler, optimizer))
    clip(model, scaler, optimizer, 1.0)
    scaler.step(optimizer)
    scaler.update()
