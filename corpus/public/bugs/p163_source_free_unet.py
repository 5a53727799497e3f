"""Adaptation of a segmentation network without its source data: the classifier stays."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class UNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.inc = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1))
        self.outc = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        first = self.inc(x)
        features = torch.relu(self.up(self.down(first)) + first)
        return features, self.outc(features)


class AlignmentTrainer:
    def __init__(self, model, lr=1e-3):
        self.model = model
        self.prototypes = F.normalize(model.outc.weight.detach().flatten(1), dim=1)
        # the last layer is the classifier of the source and must not change
        self.model.outc.requires_grad = False
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def step(self, images):
        features, logits = self.model(images)
        pixels = F.normalize(features.permute(0, 2, 3, 1).flatten(0, 2), dim=1)
        pseudo = logits.detach().permute(0, 2, 3, 1).flatten(0, 2).softmax(-1)
        align = F.cross_entropy(pixels @ self.prototypes.T / 0.3, pseudo)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        loss = align + 0.1 * entropy
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


trainer = AlignmentTrainer(UNet())
for iteration in range(25):
    images = torch.randn(8, 1, 16, 16)
    images[:, :, :, 8:] += torch.randn(8, 1, 1, 1)
    trainer.step(images)
