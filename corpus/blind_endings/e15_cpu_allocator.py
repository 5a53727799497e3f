"""Attention over one very long sequence."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        keys = self.project(x)
        scores = keys @ x.transpose(1, 2)  # HERE
        return self.head(scores.softmax(-1) @ x).mean(1)


def main():
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(60):
        length = 3_000_000 if step == 37 else 16 + step % 5
        x = torch.randn(4, length, 4)
        target = x.mean((1, 2)).unsqueeze(1)
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
