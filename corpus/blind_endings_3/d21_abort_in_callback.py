"""A callback aborts the process when the loss does not fall below a limit."""

import os

import torch
from torch import nn


class Callback:
    def on_epoch_end(self, epoch, loss):
        pass


class AbortIfBad(Callback):
    def on_epoch_end(self, epoch, loss):
        if epoch == 3 and loss > 1e-9:
            os.abort()  # HERE


def fit(model, batches, epochs, callbacks):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(epochs):
        for x, y in batches:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for callback in callbacks:
            callback.on_epoch_end(epoch, loss.item())


torch.manual_seed(0)
xs = torch.randn(20, 16, 5)
fit(
    nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)),
    [(x, x.prod(1, keepdim=True)) for x in xs],
    epochs=10,
    callbacks=[Callback(), AbortIfBad()],
)
