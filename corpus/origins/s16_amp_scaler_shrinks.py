"""Loop: autocast and a GradScaler that only lowers its scale.

Fault: square root of 0 in every batch, in the backward pass; ops: sqrt.
"""

import torch
from torch import nn

torch.manual_seed(316)
net = nn.Sequential(nn.Linear(6, 12, bias=False), nn.Tanh(), nn.Linear(12, 4, bias=False))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(8):
    x = torch.randn(8, 6)
    x[5:] = 0.0
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(x)
    length = out.float().square().sum(dim=1)
    loss = (length.sqrt() - 0.5).square().mean()  # <- origin
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
