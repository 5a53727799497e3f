"""A small survival model, fitted by a trainer that also serves second-order optimizers."""

import torch
from torch import nn

torch.manual_seed(0)
covariates = torch.randn(200, 4)
rate = torch.exp(covariates @ torch.tensor([0.5, -0.3, 0.2, 0.0]))
times = torch.distributions.Weibull(rate, 1.5).sample().clamp(min=1e-2)


class WeibullModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))

    def forward(self, x):
        scale, shape = self.net(x).unbind(1)
        return torch.distributions.Weibull(scale.exp(), shape.exp().clamp(0.2, 5))


class Net:
    def __init__(self, module, lr=0.1):
        self.module = module
        self.optimizer = torch.optim.LBFGS(module.parameters(), lr=lr, max_iter=6)

    def train_step_single(self, x, y):
        loss = -self.module(x).log_prob(y).mean()
        loss.backward()
        return loss

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        return self.optimizer.step(lambda: self.train_step_single(x, y))


net = Net(WeibullModel())
for epoch in range(10):
    loss = net.train_step(covariates, times)
    print(epoch, loss.item())
