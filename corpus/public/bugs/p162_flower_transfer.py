"""Transfer learning: the features of a trained network, a new classifier for flowers."""

from collections import OrderedDict

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class SmallVGG(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            OrderedDict(
                [
                    ("fc1", nn.Linear(16 * 4, 32)),
                    ("relu", nn.ReLU()),
                    ("fc2", nn.Linear(32, num_classes)),
                ]
            )
        )

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def flowers(count=256, kinds=5):
    palette = torch.randn(kinds, 3, 8, 8)
    labels = torch.randint(kinds, (count,))
    return TensorDataset(palette[labels] + 0.8 * torch.randn(count, 3, 8, 8), labels)


vgg = SmallVGG()
# Freeze training for all "features" layers
for param in vgg.features.parameters():
    param.require_grad = False

n_inputs = vgg.classifier[2].in_features
vgg.classifier[2] = nn.Linear(n_inputs, 5)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(vgg.parameters(), lr=0.02)
train_loader = DataLoader(flowers(), batch_size=20, shuffle=True)

for epoch in range(2):
    vgg.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        output = vgg(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
