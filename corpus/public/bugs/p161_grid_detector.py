"""A detector with one object for each picture; gradients can be accumulated."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--gradient_accumulations", type=int, default=1)
opt, _ = parser.parse_known_args()


class GridNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.LeakyReLU(0.1),
        )
        self.where = nn.Conv2d(16, 1, 1)

    def forward(self, imgs, targets):
        scores = self.where(self.features(imgs)).flatten(1)
        return nn.functional.cross_entropy(scores, targets), scores


torch.manual_seed(0)
targets = torch.randint(16, (256,))
imgs = 0.3 * torch.randn(256, 1, 8, 8)
for k, cell in enumerate(targets.tolist()):
    row, column = 2 * (cell // 4), 2 * (cell % 4)
    imgs[k, 0, row : row + 2, column : column + 2] += 1.0
dataloader = DataLoader(TensorDataset(imgs, targets), opt.batch_size, shuffle=True)
model = GridNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(opt.epochs):
    model.train()
    for batch_i, (x, y) in enumerate(dataloader):
        batches_done = len(dataloader) * epoch + batch_i
        loss, outputs = model(x, y)
        loss.backward()
        if batches_done % opt.gradient_accumulations:
            # Accumulates gradient before each step
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: {loss.item():.3f}")
