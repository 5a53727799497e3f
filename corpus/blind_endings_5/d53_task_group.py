"""A TaskGroup feeds and trains; the feeder divides by the length of an empty record."""

import asyncio

import torch
from torch import nn

RECORDS = [[j / (i + 1) for j in range(1 + i % 6)] for i in range(900)]
RECORDS[644] = []


def normalise(record):
    mean = sum(record) / len(record)  # HERE
    return torch.tensor([mean, max(record), min(record)])


async def feed(rows):
    for record in RECORDS:
        await rows.put(normalise(record))


async def train(rows):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        batch = torch.stack([await rows.get() for _ in range(10)])
        loss = nn.functional.mse_loss(model(batch[:, 1:]), batch[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


async def main():
    rows = asyncio.Queue(20)
    async with asyncio.TaskGroup() as group:
        group.create_task(feed(rows))
        group.create_task(train(rows))


torch.manual_seed(0)
asyncio.run(main())
