import torch
from torch import nn

torch.manual_seed(21)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[23, 0] = 0.0
model = nn.Linear(8, 4, bias=False)


def minibatches(size):
    for i in range(0, len(x), size):
        yield x[i : i + size], y[i : i + size]


opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for number, (a, b) in enumerate(minibatches(16)):
        mean = model(a)
        variance = a[:, :1].square()
        loss = 0.5 * (variance.log() + (b - mean).square() / variance).clamp(-50, 50).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if number % 2 == 0:
            print(epoch, number, loss.item())
