"""No space left on the device: the checkpoint is a link to a full volume."""

import os
import tempfile

import torch
from torch import nn


class Trainer:
    def __init__(self, folder):
        self.model = nn.Linear(32, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.folder = folder

    def step(self):
        x = torch.randn(16, 32)
        loss = (self.model(x) - x.mean(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def save(self, name):
        with open(os.path.join(self.folder, name), "wb") as file:
            torch.save(self.model.state_dict(), file)  # HERE
            file.flush()  # HERE

    def fit(self):
        for epoch in range(4):
            for _ in range(25):
                self.step()
            self.save(f"epoch{epoch}.pt")


torch.manual_seed(0)
folder = tempfile.mkdtemp()
os.symlink("/dev/full", os.path.join(folder, "epoch2.pt"))
Trainer(folder).fit()
