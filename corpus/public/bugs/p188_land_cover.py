"""Land cover of small tiles, with a pooled context branch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
cover = torch.randint(4, (129, 8, 8))
tiles = 0.5 * torch.randn(129, 3, 8, 8) + nn.functional.one_hot(cover, 4)[..., :3].movedim(-1, 1)
trn_dataset = TensorDataset(tiles, cover)


class ContextNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.local = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.context = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.head = nn.Conv2d(32, classes, 1)

    def forward(self, x):
        local = self.local(x)
        context = self.context(local).expand_as(local)
        return self.head(torch.cat([local, context], dim=1))


model = ContextNet()
loader = DataLoader(trn_dataset, batch_size=16, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
