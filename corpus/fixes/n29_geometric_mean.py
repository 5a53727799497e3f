import torch
from torch import nn

torch.manual_seed(28)
x = torch.rand(64, 8)
y = torch.rand(64, 4)
x[29] = 0.0
model = nn.Linear(8, 8, bias=False)
nn.init.eye_(model.weight)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
i = 0
while i < len(x):
    a, b = x[i : i + 16], y[i : i + 16]
    h = model(a)
    geometric = h.prod(dim=1) ** (1 / 8)
    loss = (geometric - b[:, 0]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    i += 16
