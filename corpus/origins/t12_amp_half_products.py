"""Loop: float16 autocast on the CPU with a GradScaler.

Fault: a product that overflows float16, in the forward pass; ops: mm.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(412)
keys = torch.randn(48, 32)
keys[27] *= 3000.0
label = torch.arange(48) % 8
table = nn.Parameter(torch.randn(8, 32) * 10.0)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
optimizer = torch.optim.SGD([table], lr=1e-3)
for key, y in DataLoader(TensorDataset(keys, label), batch_size=8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        scores = key @ table.T  # <- origin
    scores = scores.float() / 100
    loss = nn.functional.cross_entropy(scores, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
