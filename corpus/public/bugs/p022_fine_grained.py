"""Fine-grained classification with a small residual network."""

import torch
from torch import nn

torch.manual_seed(0)
x_all = torch.randn(384, 1, 10, 10)
y_all = (x_all[:, 0, :5].mean((1, 2)) > x_all[:, 0, 5:].mean((1, 2))).long()


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.block = nn.Conv2d(12, 12, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d((2, 2))
        self.fc = nn.Linear(48, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.block(x))
        x = self.pool(x).flatten(1)
        x = nn.Dropout(p=0.5)(x)
        return self.fc(x)


net = ResNet()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(6):
    net.train()
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x_all[rows]), y_all[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        for rows in torch.arange(256, 384).split(64):
            correct = (net(x_all[rows]).argmax(1) == y_all[rows]).float().mean()
    print(epoch, correct.item())
