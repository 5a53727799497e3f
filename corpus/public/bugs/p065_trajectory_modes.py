"""Predict a trajectory from features of the scene and the state of the agent."""

import torch
from torch import nn

torch.manual_seed(0)
scene, state = torch.randn(480, 1, 8, 8), torch.randn(480, 3)
path = torch.tanh(scene.mean((2, 3)) * 8 + state) @ torch.randn(3, 6)


class MTP(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.fc1 = nn.Linear(72 + 3, 64)
        self.fc2 = nn.Linear(64, 6)

    def forward(self, image, agent):
        features = torch.cat([self.backbone(image), agent], dim=1)
        return self.fc2(self.fc1(features))


model = MTP()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(5):
    for rows in torch.randperm(480).split(40):
        loss = nn.functional.smooth_l1_loss(model(scene[rows], state[rows]), path[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
