"""Focal loss on logits that one wild sample drives far apart."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(300, 10)
y = (x @ torch.randn(10, 3)).argmax(1)
x[150] = 60 * torch.randn(10)  # an uncalibrated sensor


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target):
        p_t = torch.softmax(logits, 1).gather(1, target[:, None]).squeeze(1)
        fl = -1 * (1 - p_t) ** self.gamma * torch.log(p_t)
        return fl.mean()


net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))
for layer in (net[0], net[2]):
    nn.init.kaiming_normal_(layer.weight)
y[150] = (net(x[150]).argmin()).item()
criterion = FocalLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(6):
    for rows in torch.randperm(300).split(30):
        loss = criterion(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
