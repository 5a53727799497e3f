import torch
from torch import nn

torch.manual_seed(29)
x = torch.randn(64, 8)
y = torch.randint(0, 2, (64, 4)).float()
x[47] *= 4000.0
model = nn.Linear(8, 4, bias=False)


def minibatches(size):
    for i in range(0, len(x), size):
        yield x[i : i + size], y[i : i + size]


opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for number, (a, b) in enumerate(minibatches(16)):
        p = torch.sigmoid(model(a))
        pt = p * b + (1 - p) * (1 - b)
        loss = (-((1 - pt) ** 2) * pt.log()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if number % 2 == 0:
            print(epoch, number, loss.item())
