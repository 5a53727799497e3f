"""Loop: functions returned by functions.

Fault: a vector of zeros divided by its norm, in the forward pass; ops: div.
"""

import torch
from torch import nn


def make_loss(project, target):
    def loss_of(x):
        direction = x / x.norm(dim=1, keepdim=True)  # <- origin
        return (project(direction) - target).square().mean()

    return loss_of


def make_step(parameters):
    optimizer = torch.optim.Adagrad(parameters, lr=1e-2)

    def step(loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def make_training(data, batch_size):
    project = nn.Linear(7, 2)
    step = make_step(project.parameters())
    loss_of = make_loss(project, torch.tensor([1.0, -1.0]))

    def train():
        done = []
        for rows in data.split(batch_size):
            done.append(step(loss_of(rows)))
        return done

    return train


torch.manual_seed(310)
vectors = torch.randn(48, 7)
vectors[29] = 0.0
make_training(vectors, 8)()
