"""A trainer that prepares the optimizer and the schedule, then wraps the model."""

import torch
from torch import nn

torch.manual_seed(0)


class Trainer:
    def __init__(self, model, lr=2e-3, warmup_steps=10, max_steps=60):
        self.model, self.lr = model, lr
        self.warmup_steps, self.max_steps = warmup_steps, max_steps
        self.optimizer = self.lr_scheduler = None

    def create_optimizer_and_scheduler(self):
        def rate(step):
            if step < self.warmup_steps:
                return step / self.warmup_steps
            return max(0.0, (self.max_steps - step) / (self.max_steps - self.warmup_steps))

        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.lr_scheduler = self.lr_scheduler or scheduler

    def wrap_model(self):
        self.create_optimizer_and_scheduler()
        return self.model

    def train(self, batches):
        self.create_optimizer_and_scheduler()
        model = self.wrap_model()
        model.train()
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.lr_scheduler.step()


rule = torch.randn(16, 4)


def batches(count=60):
    for _ in range(count):
        x = torch.randn(32, 16)
        yield x, (x @ rule).argmax(1)


trainer = Trainer(nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4)))
trainer.train(batches())
