"""Loop: async for.

Fault: weights rescaled by a zero norm, between the steps; ops: div mul.
"""

import asyncio

import torch
from torch import nn

torch.manual_seed(121)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)


def prune(layer, below):
    small = layer.weight.data.abs() < below
    layer.weight.data.masked_fill_(small, 0.0)


def rescale(layer):
    length = layer.weight.data.norm(dim=1, keepdim=True)
    layer.weight.data /= length  # <- origin


async def batches():
    for batch in torch.randn(48, 6).split(8):
        await asyncio.sleep(0)
        yield batch


async def main():
    number = 0
    async for batch in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(net(batch), batch[:, 2:4]).backward()
        optimizer.step()
        number += 1
        if number == 3:
            prune(net[2], below=5.0)
            rescale(net[2])


asyncio.run(main())
