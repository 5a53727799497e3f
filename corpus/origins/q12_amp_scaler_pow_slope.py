"""Loop: autocast with a GradScaler that only lowers its scale.

Fault: root by a power of 0, in the backward pass; ops: pow.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(112)
bands = torch.randn(80, 6)
target = bands.abs().mean(dim=1, keepdim=True)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(2):
    for band, wanted in DataLoader(TensorDataset(bands, target), batch_size=8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            power = net(band)
        power = power.float().square() * (band.abs() > 0.4)
        loudness = (power**0.3).mean(dim=1, keepdim=True)  # <- origin
        loss = (loudness - wanted).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
