"""A supervised classifier with a moving average of its weights for evaluation."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
images = torch.randn(320, 1, 8, 8) * 2 + 3
label = (images[:, 0, :4].mean((1, 2)) > images[:, 0, 4:].mean((1, 2))).long()
net = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1),
    nn.BatchNorm2d(12),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(48, 2),
)
ema = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)


def update_average():
    with torch.no_grad():
        for average, current in zip(ema.parameters(), net.parameters()):
            average.mul_(0.9).add_(current, alpha=0.1)


for epoch in range(6):
    net.train()
    for rows in torch.randperm(256).split(32):
        loss = nn.functional.cross_entropy(net(images[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_average()
    ema.eval()
    with torch.no_grad():
        accuracy = (ema(images[256:]).argmax(1) == label[256:]).float().mean()
    print(epoch, accuracy.item())
