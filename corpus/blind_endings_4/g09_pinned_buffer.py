"""CUDA: a pinned buffer for all features is larger than the memory of the host."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


class FeatureCache:
    def __init__(self):
        self.buffer = torch.empty(1000, 32, pin_memory=True)

    def grow(self, rows):
        self.buffer = torch.empty(rows, 32, pin_memory=True)  # HERE


def main():
    torch.manual_seed(0)
    cache = FeatureCache()
    model = nn.Linear(32, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        x = torch.randn(64, 32).cuda()
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30:
            cache.grow(100_000_000_000)


if __name__ == "__main__":
    main()
