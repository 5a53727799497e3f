"""Train, save, and go on from the checkpoint."""

import io

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 12)
y = torch.tanh(x @ torch.randn(12, 3) / 2)


class Optim:
    def __init__(self, lr):
        self.lr = lr
        self.optimizer = None

    def set_parameters(self, params):
        self.optimizer = torch.optim.Adam(params, lr=self.lr)


def build():
    return nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 3))


def train(model, optim, steps):
    for _ in range(steps):
        rows = torch.randint(0, 400, (40,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optim.optimizer.zero_grad()
        loss.backward()
        optim.optimizer.step()


def resume(file):
    checkpoint = torch.load(file)
    model = build()
    model.load_state_dict(checkpoint["model"])
    optim = Optim(3e-3)
    optim.set_parameters(list(model.parameters()))
    optim.optimizer.load_state_dict(checkpoint["optim"])
    optim.set_parameters(model.parameters())
    return model, optim


model, optim = build(), Optim(3e-3)
optim.set_parameters(model.parameters())
train(model, optim, 20)
file = io.BytesIO()
torch.save({"model": model.state_dict(), "optim": optim.optimizer.state_dict()}, file)
file.seek(0)
train(*resume(file), 25)
