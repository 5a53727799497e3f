"""A linear classifier on top of a pretrained visual backbone that stays as it is."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def backbone():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Classifier(nn.Module):
    def __init__(self, visual, classes=4):
        super().__init__()
        self.visual = visual
        self.fc = nn.Linear(32, classes)

    def forward(self, image):
        return self.fc(self.visual(image))


def pretrained():
    visual = backbone()
    with torch.no_grad():
        for _ in range(60):
            visual(0.5 * torch.randn(32, 1, 12, 12) + 0.2)
    return visual


model = Classifier(pretrained())
for param in model.visual.parameters():
    param.requires_grad = False

labels = torch.randint(4, (320,))
images = torch.randn(320, 1, 12, 12) * 0.7
images += 2.0 * torch.randn(4, 1, 12, 12)[labels]
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)
model.train()
for epoch in range(3):
    for image, label in loader:
        loss = nn.functional.cross_entropy(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
