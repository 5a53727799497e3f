"""Multi-label cell types from slices of a picture."""

import torch
from torch import nn

torch.manual_seed(0)
BATCH = 8
images = torch.randn(240, 2, 6, 6)
targets = (images.mean(1).reshape(240, 6, 6).mean(2) > 0).float()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, stride=2)
        self.fc = nn.Linear(BATCH * 8 * 4, 6)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        x = x.view(-1, BATCH * 8 * 4)
        return torch.sigmoid(self.fc(x))


net = Net()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for rows in torch.randperm(240).split(BATCH):
        loss = criterion(net(images[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
