"""Landmarks of a hand, with a second loss on the lengths of bones."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)
features = torch.randn(400, 20)
marks = torch.tanh(features @ torch.randn(20, 10) / 3).view(-1, 5, 2)


def bones(p):
    return (p[:, 1:] - p[:, :-1]).square().sum(-1)


head = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 10), nn.Unflatten(1, (5, 2)))
optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
for epoch in range(4):
    for rows in torch.randperm(400).split(40):
        pred = head(features[rows])
        loss_kpt = nn.functional.smooth_l1_loss(pred, marks[rows])
        copied = torch.tensor(pred)
        loss_bone = nn.functional.l1_loss(bones(copied), bones(marks[rows]))
        loss = loss_kpt + 0.2 * loss_bone
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
