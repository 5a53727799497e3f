"""Rank 1 has fewer batches and waits at the final barrier; rank 0 waits for its gradients."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
rows = torch.randn(1600 if rank == 0 else 1440, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for (x,) in DataLoader(TensorDataset(rows), batch_size=16):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)  # HERE
    for p, grad in zip(model.parameters(), flat.split([8, 1]), strict=True):
        p.grad.copy_(grad.view_as(p) / dist.get_world_size())
    optimizer.step()
    time.sleep(0.01)
print("hangs now", flush=True)
dist.barrier()  # HERE
dist.destroy_process_group()
