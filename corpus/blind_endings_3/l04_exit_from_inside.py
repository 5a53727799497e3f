"""The loop ends the program from inside a function when the budget of steps is used up."""

import torch
from torch import nn


class Budget:
    def __init__(self, steps):
        self.left = steps

    def use(self):
        self.left -= 1
        if self.left == 0:
            print("budget used up")
            raise SystemExit


def main():
    torch.manual_seed(0)
    budget = Budget(120)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    while True:
        x = torch.randn(24, 5)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.use()


if __name__ == "__main__":
    main()
