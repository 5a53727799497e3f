"""An asyncio loop trains between messages; the event that ends a pause is never set."""

import asyncio

import torch
from torch import nn


class Control:
    def __init__(self):
        self.running = asyncio.Event()
        self.running.set()

    async def pause(self, step):
        self.running.clear()
        if step < 100:
            asyncio.get_running_loop().call_later(0.2, self.running.set)
        else:
            print("hangs now", flush=True)


async def train(control):
    model = nn.Linear(7, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(300):
        await control.running.wait()  # HERE
        x = torch.randn(12, 7)
        loss = (model(x) - x.sum(1, keepdim=True) / 7).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        await asyncio.sleep(0.01)
        if step % 50 == 49:
            await control.pause(step)


async def main():
    await asyncio.gather(train(Control()))


torch.manual_seed(0)
asyncio.run(main())
