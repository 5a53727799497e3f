import torch
from torch import nn

torch.manual_seed(4)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[18] = 0.0
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
i = 0
while i < len(x):
    a, b = x[i : i + 16], y[i : i + 16]
    v = model(a)
    heading = torch.atan(v[:, 1] / v[:, 0])
    loss = (heading - b[:, 0]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    i += 16
