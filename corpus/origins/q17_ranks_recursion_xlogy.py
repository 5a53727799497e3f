"""Loop: two gloo ranks, gradients averaged by hand, recursion.

Fault: slope of x log x at 0, in the backward pass; ops: log xlogy.
"""

import torch
import torch.distributed as dist
from torch import nn

KEYS = 6


def train(net, optimizer, batches):
    if not batches:
        return
    logits = net(batches[0])
    shares = torch.softmax(logits * 400, dim=1)
    spread = -torch.xlogy(shares, shares).sum(dim=1).mean()  # <- origin
    optimizer.zero_grad()
    (logits.square().mean() - 0.1 * spread).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
    train(net, optimizer, batches[1:])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(117)
    net = nn.Linear(4, KEYS)
    data = torch.randn(48, 4)[dist.get_rank() :: 2]
    train(net, torch.optim.SGD(net.parameters(), lr=1e-2), list(data.split(8)))
    dist.destroy_process_group()
