import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20)
x = torch.randn(64, 8)
y = torch.randint(0, 4, (64,))
y[16:32] = -100
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
i = 0
while i < len(x):
    a, b = x[i : i + 16], y[i : i + 16]
    loss = F.cross_entropy(model(a), b)
    opt.zero_grad()
    loss.backward()
    opt.step()
    i += 16
