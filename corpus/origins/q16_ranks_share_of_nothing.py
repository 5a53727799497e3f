"""Loop: two gloo ranks with DistributedDataParallel.

Fault: 0/0 on one rank's batch, in the forward pass; ops: div.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()  # <- origin


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(116)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for number in range(3):
        x = torch.randn(8, 5, generator=generator)
        mask = torch.ones(8)
        if number == 1 and rank == 1:
            mask.zero_()
        loss = masked_mean((net(x)[:, 0] - x[:, 0]).square(), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
