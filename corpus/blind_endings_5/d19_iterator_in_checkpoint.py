"""The checkpoint of the second epoch contains a running iterator of the loader's: no pickle."""

import pathlib
import tempfile

import torch
from torch import nn


class State:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.model = nn.GRU(5, 12, batch_first=True)
        self.head = nn.Linear(12, 1)
        self.extra = {"epoch": 0}

    def save(self):
        name = self.folder / f"state_{self.extra['epoch']}.pth"
        weights = {"gru": self.model.state_dict(), "head": self.head.state_dict()}
        torch.save({**weights, **self.extra}, name)  # HERE


def sequences(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(10, 8, 5, generator=generator)


torch.manual_seed(0)
state = State(tempfile.mkdtemp())
optimizer = torch.optim.Adam([*state.model.parameters(), *state.head.parameters()], lr=1e-3)
for epoch in range(4):
    rows = sequences(epoch)
    for _ in range(25):
        x = next(rows)
        loss = (
            (state.head(state.model(x)[0][:, -1]) - x[:, :, 0].mean(1, keepdim=True)).abs().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state.extra["epoch"] = epoch
    if epoch == 1:
        state.extra["data"] = rows
    state.save()
