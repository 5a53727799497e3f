"""One label is equal to the number of classes."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(2000, 10)
y = (x @ torch.randn(10, 5)).argmax(1)
y[1333] = 5
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def compute_loss(xb, yb):
    logits = net(xb)
    return F.cross_entropy(logits, yb)  # HERE


for i in range(0, 2000, 50):
    opt.zero_grad()
    loss = compute_loss(x[i : i + 50], y[i : i + 50])
    loss.backward()
    opt.step()
