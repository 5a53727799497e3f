import torch
from torch import nn

torch.manual_seed(5)
x = torch.randn(64, 8)
y = torch.randint(0, 4, (64,))
x[25] *= 2000.0
model = nn.Linear(8, 4, bias=False)


def minibatches(size):
    for i in range(0, len(x), size):
        yield x[i : i + size], y[i : i + size]


opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for number, (a, b) in enumerate(minibatches(16)):
        probs = torch.softmax(model(a), dim=1)
        picked = probs.gather(1, b.unsqueeze(1)).squeeze(1)
        loss = -torch.log(picked).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if number % 2 == 0:
            print(epoch, number, loss.item())
