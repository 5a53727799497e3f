"""The training is a unit test; unittest.main() ends with sys.exit(False)."""

import unittest

import torch
from torch import nn


class LossFalls(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.model = nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self):
        x = torch.randn(16, 6)
        loss = (self.model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def test_loss_falls(self):
        losses = [self.step() for _ in range(120)]
        self.assertLess(losses[-1], losses[0])  # noqa: PT009

    def test_shapes_are_checked(self):
        with self.assertRaises(RuntimeError):  # noqa: PT027
            self.model(torch.randn(3, 7))


if __name__ == "__main__":
    unittest.main()
