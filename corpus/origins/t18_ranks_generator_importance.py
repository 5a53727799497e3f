"""Loop: two gloo ranks with DistributedDataParallel, batches from a generator.

Fault: exp of a large difference, in the forward pass; ops: exp.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rollouts(rank, number):
    generator = torch.Generator().manual_seed(100 + rank)
    for index in range(number):
        states = torch.randn(8, 4, generator=generator)
        actions = torch.randint(0, 3, (8,), generator=generator)
        old = -torch.rand(8, generator=generator) - 0.7
        if rank == 0 and index == 1:
            old[3] = -500.0
        yield states, actions, old


def surrogate(policy, states, actions, old):
    now = policy(states).log_softmax(dim=-1).gather(1, actions[:, None])[:, 0]
    ratio = torch.exp(now - old)  # <- origin
    return -ratio.mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(418)
    policy = DistributedDataParallel(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for batch in rollouts(dist.get_rank(), 3):
        loss = surrogate(policy, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
