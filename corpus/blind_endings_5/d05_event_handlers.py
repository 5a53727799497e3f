"""An engine with events, as in ignite: a handler that is registered by decorator divides by
zero."""

import collections

import torch
from torch import nn


class Engine:
    def __init__(self, update):
        self.update, self.handlers = update, collections.defaultdict(list)
        self.iteration = 0

    def on(self, event, every=1):
        def register(handler):
            self.handlers[event].append((every, handler))
            return handler

        return register

    def fire(self, event):
        for every, handler in self.handlers[event]:
            if self.iteration % every == 0:
                handler(self)

    def run(self, batches):
        for batch in batches:
            self.output = self.update(self, batch)
            self.iteration += 1
            self.fire("iteration")


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 20), nn.SiLU(), nn.Linear(20, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
seen = {"right": 0, "rows": 0}


def update(engine, batch):
    x, y = batch
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen["right"] += (logits.argmax(1) == y).sum().item()
    seen["rows"] += len(y)
    return loss.item()


trainer = Engine(update)


@trainer.on("iteration", every=16)
def report(engine):
    print(engine.iteration, "accuracy", seen["right"] / seen["rows"])  # HERE
    if engine.iteration == 48:
        trainer.handlers["iteration"].append((1, report))
    seen.update(right=0, rows=0)


def batches(count):
    for _ in range(count):
        x = torch.randn(32, 5)
        yield x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


trainer.run(batches(100))
