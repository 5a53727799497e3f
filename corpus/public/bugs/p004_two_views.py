"""Two noisy views of a sample predict each other (self-supervised), with a moving average."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        one, two = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
        with torch.no_grad():
            goal = F.normalize(self.target(two), dim=-1)
        guess = F.normalize(self.predictor(self.online(one)), dim=-1)
        return (2 - 2 * (guess * goal).sum(-1)).mean()

    def update_moving_average(self):
        with torch.no_grad():
            for a, b in zip(self.target.parameters(), self.online.parameters()):
                a.lerp_(b, 0.01)


class Trainer:
    def __init__(self, net, dataset):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        self.loader = DataLoader(dataset, batch_size=32, shuffle=True)

    def fit(self, steps):
        done = 0
        while done < steps:
            for (x,) in self.loader:
                self._step(x)
                done += 1

    def _step(self, x):
        if True:
            loss = self.net(x)
            loss.backward()
            self.optimizer.zero_grad()
            self.optimizer.step()
            self.net.update_moving_average()


Trainer(Learner(), TensorDataset(torch.randn(512, 20))).fit(40)
