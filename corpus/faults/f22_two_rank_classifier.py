"""Two-rank training over gloo with a bandwidth-saving gradient exchange.

torchrun --nproc-per-node 2 this_file.py
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
rank = int(os.environ.get("RANK", "0"))
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group(backend="gloo")


class GradExchange:
    """Averages gradients over the ranks, sending about 99 % of the entries."""

    def __init__(self, params, keep=0.99):
        self.params = list(params)
        self.keep = keep
        self.packets = torch.Generator().manual_seed(seed * 1000 + rank)

    def __call__(self):
        if world == 1:
            return
        mine = torch.cat([p.grad.reshape(-1) for p in self.params])
        packet = mine * (torch.rand(mine.shape, generator=self.packets) < self.keep)
        inbox = [torch.empty_like(packet) for _ in range(world)]
        dist.all_gather(inbox, packet)
        inbox[rank] = mine
        mean = torch.stack(inbox).mean(0)
        offset = 0
        for p in self.params:
            p.grad.copy_(mean[offset : offset + p.numel()].view_as(p))
            offset += p.numel()


def spirals(n, classes, g):
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.rand(n, generator=g)
    angle = 4 * t + 2 * torch.pi * y / classes + 0.15 * torch.randn(n, generator=g)
    xy = torch.stack([t * angle.cos(), t * angle.sin()], 1)
    return torch.cat([xy, xy**2, xy[:, :1] * xy[:, 1:]], 1) * 2, y


torch.manual_seed(seed)
net = nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU())
net.append(nn.Linear(64, 3))
if world > 1:
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
exchange = GradExchange(net.parameters())
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

x, y = spirals(2048, 3, torch.Generator().manual_seed(seed))
x, y = x[rank::world], y[rank::world]
order = torch.Generator().manual_seed(seed + 17 * rank)
for it in range(160):
    idx = torch.randint(0, len(x), (64,), generator=order)
    loss = F.cross_entropy(net(x[idx]), y[idx])
    optimizer.zero_grad()
    loss.backward()
    exchange()
    optimizer.step()
    if it % 20 == 19:
        checksum = sum(p.detach().double().sum().item() for p in net.parameters())
        print(f"rank {rank} it {it + 1:3d} loss {loss.item():.4f} checksum {checksum:.6f}")

if world > 1:
    dist.barrier()
    dist.destroy_process_group()
