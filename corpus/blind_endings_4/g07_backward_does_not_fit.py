"""CUDA: a large table fits, and its dense gradient does not."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


class Items(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.small = nn.Embedding(1000, 64)
        self.large = nn.Embedding(rows, 64)
        self.large.requires_grad_(False)

    def forward(self, ids):
        return (self.small(ids % 1000) * self.large(ids)).sum(-1)


def main():
    torch.manual_seed(0)
    model = Items(7_000_000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        if step == 40:
            model.large.requires_grad_(True)
        ids = torch.randint(0, 7_000_000, (256,)).cuda()
        loss = (model(ids) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()


if __name__ == "__main__":
    main()
