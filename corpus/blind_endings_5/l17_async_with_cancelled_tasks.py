"""An asyncio loop trains while a heartbeat task runs; tasks are cancelled and time out on
purpose."""

import asyncio

import torch
from torch import nn


async def heartbeat():
    while True:
        await asyncio.sleep(0.05)


async def slow():
    await asyncio.sleep(5)


async def main():
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    beat = asyncio.create_task(heartbeat())
    for step in range(120):
        x = torch.randn(20, 5)
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        await asyncio.sleep(0)
        if step % 40 == 39:
            try:
                await asyncio.wait_for(slow(), timeout=0.1)
            except asyncio.TimeoutError:
                print("no answer, never mind")
    beat.cancel()
    try:
        await beat
    except asyncio.CancelledError:
        pass


torch.manual_seed(0)
asyncio.run(main())
