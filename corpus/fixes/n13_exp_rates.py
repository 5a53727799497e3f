import torch
from torch import nn

torch.manual_seed(12)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[30] *= 500.0
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
i = 0
while i < len(x):
    a, b = x[i : i + 16], y[i : i + 16]
    rate = torch.exp(model(a))
    loss = (rate - b * model(a)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    i += 16
