"""Adaptation to a new sensor: a momentum teacher gives pseudo labels for it."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class MomentumUpdater:
    def __init__(self, tau=0.9):
        self.tau = tau

    @torch.no_grad()
    def update(self, online, momentum):
        for op, mp in zip(online.parameters(), momentum.parameters()):
            mp.data.mul_(self.tau).add_(op.data * (1 - self.tau))


student = nn.Sequential(
    nn.Linear(10, 32),
    nn.BatchNorm1d(32),
    nn.ReLU(),
    nn.Linear(32, 32),
    nn.BatchNorm1d(32),
    nn.ReLU(),
    nn.Linear(32, 3),
)
teacher = copy.deepcopy(student).eval()
for p in teacher.parameters():
    p.requires_grad = False
updater = MomentumUpdater()
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
centres = 1.5 * torch.randn(3, 10) + 2.0
for step in range(40):
    labels = torch.randint(3, (32,))
    source = centres[labels] + torch.randn(32, 10)
    target = centres[torch.randint(3, (32,))] + torch.randn(32, 10) + 0.3
    with torch.no_grad():
        pseudo = teacher(target).argmax(1)
    logits = student(torch.cat([source, target]))
    loss = nn.functional.cross_entropy(logits[:32], labels)
    loss = loss + 0.2 * nn.functional.cross_entropy(logits[32:], pseudo)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    updater.update(student, teacher)
