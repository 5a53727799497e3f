"""Choose between kernel sizes per channel."""

import torch
from torch import nn

torch.manual_seed(0)
images = torch.randn(240, 2, 8, 8)
label = (images[:, 0].mean((1, 2)) > images[:, 1].mean((1, 2))).long()


class SKAttention(nn.Module):
    def __init__(self, channels=12, kernels=(1, 3, 5)):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2, channels, k, padding=k // 2) for k in kernels)
        self.squeeze = nn.Linear(channels, 8)
        self.fcs = nn.ModuleList(nn.Linear(8, channels) for _ in kernels)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        branches = torch.stack([torch.relu(conv(x)) for conv in self.convs])
        s = torch.relu(self.squeeze(branches.sum(0).mean((2, 3))))
        weights = torch.stack([fc(s) for fc in self.fcs])
        weights = self.softmax(weights)
        return (weights[..., None, None] * branches).sum(0)


model = nn.Sequential(SKAttention(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for epoch in range(5):
    for rows in torch.randperm(240).split(24):
        loss = nn.functional.cross_entropy(model(images[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
