"""Small colour pictures, kept in memory and prepared when they are read."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(0)
MEAN, SD = [0.5, 0.45, 0.4], [0.25, 0.25, 0.3]


class Cifar(Dataset):
    def __init__(self, count=240):
        self.labels = rng.integers(0, 4, count)
        kinds = rng.uniform(0.1, 0.9, (4, 3, 8, 8))
        noise = 0.15 * rng.standard_normal((count, 3, 8, 8))
        self.inputs = (kinds[self.labels] + noise).clip(0, 1).astype(np.float32)

    def color_norm(self, im):
        for c in range(3):
            im[c] -= MEAN[c]
            im[c] /= SD[c]
        return im

    def __getitem__(self, index):
        im, label = self.inputs[index, ...], self.labels[index]
        im = self.color_norm(im)
        if rng.random() < 0.5:
            im = im[:, :, ::-1].copy()
        return torch.from_numpy(im), int(label)

    def __len__(self):
        return len(self.labels)


torch.manual_seed(0)
loader = DataLoader(Cifar(), batch_size=40, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(16 * 16, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
