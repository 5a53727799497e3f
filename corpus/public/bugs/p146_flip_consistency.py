"""Semi-supervised detection: predictions of a picture and of its mirror image must agree."""

import torch
from torch import nn

torch.manual_seed(0)
pictures = torch.randn(128, 1, 10, 10)
labels = (pictures[:, 0, :, :5].mean((1, 2)) > pictures[:, 0, :, 5:].mean((1, 2))).long()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU())
        self.scores = nn.Conv2d(12, 4, 3, padding=1)
        self.cls = nn.Linear(4 * 100, 2)

    def forward(self, x):
        maps = self.scores(self.body(x))
        return self.cls(maps.flatten(1)), maps


def flip(images, semi_check):
    flipped = images.clone()
    for k, flag in enumerate(semi_check):
        if flag is True:
            flipped[k] = images[k].flip(-1)
    return flipped


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for it in range(24):
    rows = torch.randint(128, (16,))
    semi_check = torch.ones(16, dtype=torch.bool)
    images = pictures[rows]
    logits, maps = model(images)
    _, maps_flip = model(flip(images, semi_check))
    consistency = nn.functional.mse_loss(maps, flip(maps_flip, semi_check))
    loss = nn.functional.cross_entropy(logits, labels[rows]) + consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
