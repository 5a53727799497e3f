"""Adding problem with a plain recurrent network."""

import argparse

import torch
import torch.nn as nn


class RNNCellNet(nn.Module):
    def __init__(self, n_in=2, hidden=64):
        super().__init__()
        self.hidden = hidden
        self.i2h = nn.Linear(n_in, hidden)
        self.h2h = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)
        nn.init.eye_(self.h2h.weight)

    def forward(self, x):
        h = x.new_zeros(x.size(0), self.hidden)
        for t in range(x.size(1)):
            h = nn.functional.leaky_relu(self.i2h(x[:, t]) + self.h2h(h), 0.3)
        return self.out(h).squeeze(1)


def adding_batch(batch, length):
    values = torch.rand(batch, length)
    marks = torch.zeros(batch, length)
    half = length // 2
    a = torch.randint(0, half, (batch, 1))
    b = torch.randint(half, length, (batch, 1))
    marks.scatter_(1, a, 1.0)
    marks.scatter_(1, b, 1.0)
    return torch.stack([values, marks], 2), (values * marks).sum(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--lr", type=float, default=1e-4)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    model = RNNCellNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    criterion = nn.MSELoss()
    for step in range(60):
        x, y = adding_batch(32, args.length)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        gnorm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        optimizer.step()
        if step < 10 or step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} grad {gnorm.item():.2e}")


if __name__ == "__main__":
    main()
