"""Activation checkpointing: the recomputation takes another branch than the forward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 101:
            return torch.relu(self.a(x))
        return torch.relu(self.b(torch.relu(self.a(x))))


def main():
    torch.manual_seed(0)
    gated, head = Gated(), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*gated.parameters(), *head.parameters()], lr=0.05)
    for _ in range(90):
        x = torch.randn(16, 8)
        hidden = checkpoint(gated, x, use_reentrant=False)
        loss = (head(hidden).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()


if __name__ == "__main__":
    main()
