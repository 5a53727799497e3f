"""Small fully convolutional segmentation with validation every few iterations."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
images = torch.randn(160, 1, 12, 12)
masks = (F.avg_pool2d(images, 3, 1, 1)[:, 0] > 0).long()


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Dropout2d(0.1),
            nn.Conv2d(16, 2, 3, padding=1),
        )
        self.optim = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.train_loader = DataLoader(TensorDataset(images[:128], masks[:128]), 8, shuffle=True)
        self.val_loader = DataLoader(TensorDataset(images[128:], masks[128:]), 16)
        self.iteration = 0

    def loss(self, data, target):
        return F.cross_entropy(self.model(data), target)

    def validate(self):
        self.model.eval()
        total = 0.0
        for data, target in self.val_loader:
            with torch.no_grad():
                total += self.loss(data, target).item()
        return total / len(self.val_loader)

    def train_epoch(self):
        self.model.train()
        for data, target in self.train_loader:
            self.iteration += 1
            if self.iteration % 5 == 0:
                self.validate()
            self.optim.zero_grad()
            loss = self.loss(data, target)
            loss.backward()
            self.optim.step()


trainer = Trainer()
for epoch in range(4):
    trainer.train_epoch()
