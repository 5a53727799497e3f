import torch
from torch import nn

torch.manual_seed(13)
x = torch.rand(64, 8)
y = torch.rand(64, 4)
x[41] = 0.0
model = nn.Linear(8, 4, bias=False)


def minibatches(size):
    for i in range(0, len(x), size):
        yield x[i : i + size], y[i : i + size]


opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for number, (a, b) in enumerate(minibatches(16)):
        share = a / a.sum(dim=1, keepdim=True)
        loss = (model(share) - b).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if number % 2 == 0:
            print(epoch, number, loss.item())
