"""A trainer that can resume."""

import io

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 14)
y = torch.tanh(x @ torch.randn(14, 4) / 2)


class BaseTrainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(14, 40), nn.SiLU(), nn.Linear(40, 4))
        self.optimizer = None
        self.pending = None

    def setup(self):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def resume(self, file):
        checkpoint = torch.load(file)
        self.model.load_state_dict(checkpoint["model"])
        if self.optimizer is not None and "optimizer" in checkpoint:
            self.optimizer.load_state_dict(checkpoint["optimizer"])

    def train(self, steps):
        self.setup()
        for _ in range(steps):
            rows = torch.randint(0, 400, (40,))
            loss = nn.functional.mse_loss(self.model(x[rows]), y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


first = BaseTrainer()
first.train(20)
file = io.BytesIO()
torch.save({"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict()}, file)
file.seek(0)
second = BaseTrainer()
second.resume(file)
second.train(22)
