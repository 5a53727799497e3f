"""The job has a limit of memory (ulimit -v); one document is far longer than the others."""

import resource

import torch
from torch import nn


def limit_memory(extra):
    with open("/proc/self/statm") as numbers:
        pages = int(numbers.read().split()[0])
    size = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = torch.softmax(q @ k.transpose(1, 2) / x.shape[-1] ** 0.5, dim=-1)  # HERE
        return weights @ v


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), Attention(16), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    limit_memory(2 << 30)
    for step in range(100):
        length = 60000 if step == 47 else 40 + step % 7
        x = torch.randn(2, length, 4)
        loss = (model(x).mean(1) - x.mean((1, 2)).unsqueeze(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
