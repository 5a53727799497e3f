"""Classify short clips with a convolution in space and one in time."""

import torch
from torch import nn

torch.manual_seed(0)
clips = torch.randn(240, 1, 4, 6, 6)
label = (clips[:, 0, 2:].mean((1, 2, 3)) > clips[:, 0, :2].mean((1, 2, 3))).long()


class Conv2Plus1D(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.spatial = nn.Conv3d(a, b, (1, 3, 3), padding=(0, 1, 1))
        self.temporal = nn.Conv3d(b, b, (3, 1, 1), padding=(1, 0, 0))

    def forward(self, x):
        return self.temporal(self.spatial(x))


net = nn.Sequential(
    Conv2Plus1D(1, 8), nn.ReLU(), nn.AdaptiveAvgPool3d((4, 1, 1)), nn.Flatten(), nn.Linear(32, 2)
)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(4):
    for rows in torch.randperm(240).split(24):
        loss = nn.functional.cross_entropy(net(clips[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
