import torch
import torch.nn as nn

torch.manual_seed(5)
x = torch.randn(480, 10)
y = (x[:, :1] * 0.7 - x[:, 1:2] + 0.3 * torch.sin(3 * x[:, 2:3])) / 1.5
net = nn.Sequential(nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(4):
    opt.zero_grad()
    for rows in torch.randperm(480).split(40):
        out = net(x[rows])
        loss = ((out - y[rows]) ** 2).mean()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
