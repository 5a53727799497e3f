"""Sharpen pictures with a loss on their edges."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
pictures = F.interpolate(torch.rand(160, 1, 3, 3), scale_factor=4)
kernel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])[None, None] / 4


def sobel(image):
    gx = F.conv2d(image, kernel)
    gy = F.conv2d(image, kernel.transpose(2, 3))
    return torch.sqrt(gx**2 + gy**2)


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.lift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        self.curve = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        curved = self.curve(x.unsqueeze(-1)).squeeze(-1)
        return self.gain * x + self.lift + 0.1 * curved


model = Gain()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    for rows in torch.randperm(160).split(16):
        sharp = 1.5 * pictures[rows] - 0.2
        out = model(pictures[rows])
        loss = F.l1_loss(out, sharp) + 0.5 * F.mse_loss(sobel(out), sobel(sharp))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
