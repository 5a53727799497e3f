"""Loop: stages found by getattr; the batch is an attribute.

Fault: arc cosine of a cosine clamped to 1, in the backward pass; ops: acos.
"""

import torch
from torch import nn


class Pipeline:
    stages = ("load", "predict", "score", "learn")

    def __init__(self, net, poses, weights):
        self.net, self.poses, self.weights = net, poses, weights
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        self.position = 0

    def load(self):
        rows = slice(self.position, self.position + 8)
        self.batch, self.moving = self.poses[rows], self.weights[rows]
        self.position += 8

    def predict(self):
        self.guess = self.batch + self.moving[:, None] * self.net(self.batch)

    def score(self):
        same = (self.guess * self.batch).sum(dim=1).abs().clamp(max=1.0)
        angle = 2 * torch.acos(same)  # <- origin
        self.loss = angle.mean() + (self.guess.norm(dim=1) - 1).square().mean()

    def learn(self):
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()

    def run(self):
        while self.position < len(self.poses):
            for stage in self.stages:
                getattr(self, stage)()


torch.manual_seed(430)
poses = nn.functional.normalize(torch.randn(48, 4), dim=1) * 0.7
poses[20] = torch.tensor([1.0, 0.0, 0.0, 0.0])
net = nn.Linear(4, 4, bias=False)
with torch.no_grad():
    net.weight.mul_(0.1)
moving = torch.ones(48)
moving[20] = 0.0  # standing still
Pipeline(net, poses, moving).run()
