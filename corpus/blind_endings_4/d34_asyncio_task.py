"""Batches come from an asyncio task; a record without a comma ends it."""

import asyncio

import torch
from torch import nn


def parse(record):
    x, y = record.split(",")  # HERE
    return float(x), float(y)


async def records(queue):
    for number in range(640):
        await queue.put(f"{number / 640},{number / 320}" if number != 333 else "n/a")
    await queue.put(None)


async def train(queue):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = []
    while (record := await queue.get()) is not None:
        rows.append(parse(record))
        if len(rows) < 8:
            continue
        data, rows = torch.tensor(rows), []
        loss = (model(data[:, :1]) - data[:, 1:]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


async def main():
    queue = asyncio.Queue(maxsize=16)
    await asyncio.gather(records(queue), train(queue))


torch.manual_seed(0)
asyncio.run(main())
