"""Domain generalisation: the gradients of the environments should agree."""

import torch
from torch import autograd, nn
from torch.nn import functional as F

torch.manual_seed(0)
rule = torch.randn(10, 3)


class IGA(nn.Module):
    def __init__(self, penalty=1.0):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 3))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3)
        self.penalty = penalty

    def update(self, minibatches):
        total_loss, grads = 0.0, []
        params = tuple(self.network.parameters())
        for x, y in minibatches:
            env_loss = F.cross_entropy(self.network(x), y)
            total_loss = total_loss + env_loss
            grads.append(autograd.grad(env_loss, params, retain_graph=True))
        mean_loss = total_loss / len(minibatches)
        mean_grad = autograd.grad(mean_loss, params, retain_graph=True)
        penalty_value = 0.0
        for grad in grads:
            for g, mean_g in zip(grad, mean_grad):
                penalty_value = penalty_value + (g - mean_g).pow(2).sum()
        objective = mean_loss + self.penalty * penalty_value
        self.optimizer.zero_grad()
        objective.backward()
        self.optimizer.step()


def environment(agree, count=32):
    x = torch.randn(count, 10)
    y = (x @ rule).argmax(1)
    hint = torch.where(torch.rand(count) < agree, y, torch.randint(3, (count,)))
    return torch.cat([x, hint.unsqueeze(1) - 1.0, torch.randn(count, 1)], 1), y


algorithm = IGA()
for step in range(40):
    algorithm.update([environment(0.9), environment(0.7), environment(0.5)])
