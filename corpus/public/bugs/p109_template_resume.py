"""A trainer of the usual template, resumed from its checkpoint in the middle of a run."""

import os
import tempfile

import torch
from torch import nn

config = {"lr": 0.08, "epochs": 12, "step_size": 3, "gamma": 0.3, "resume": None}


class Trainer:
    def __init__(self, config):
        torch.manual_seed(0)
        self.config = config
        self.model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=0.9)
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(
            self.optimizer, config["step_size"], gamma=config["gamma"]
        )
        self.start_epoch = 0
        self.x = torch.randn(160, 10)
        self.y = torch.sin(self.x[:, :1]) + 0.3 * self.x[:, 1:2]
        if config["resume"]:
            self._resume_checkpoint(config["resume"])

    def train(self, until):
        for epoch in range(self.start_epoch, until):
            for rows in torch.randperm(160).split(32):
                loss = nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.lr_scheduler.step()
            self.epoch = epoch

    def save(self, path):
        state = {"epoch": self.epoch, "state_dict": self.model.state_dict()}
        state["optimizer"] = self.optimizer.state_dict()
        state["scheduler"] = self.lr_scheduler.state_dict()
        torch.save(state, path)

    def _resume_checkpoint(self, path):
        checkpoint = torch.load(path)
        self.start_epoch = checkpoint["epoch"] + 1
        self.model.load_state_dict(checkpoint["state_dict"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])


path = os.path.join(tempfile.mkdtemp(), "checkpoint-epoch5.pth")
first = Trainer(config)
first.train(6)
first.save(path)
Trainer({**config, "resume": path}).train(config["epochs"])
