"""accelerate: the weighted stage computes one loss per row and calls backward on the vector."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Weighted:
    def __init__(self, start):
        self.start = start

    def __call__(self, outputs, targets, epoch):
        if epoch < self.start:
            return nn.functional.binary_cross_entropy_with_logits(outputs, targets)
        weights = 1 + targets
        return nn.functional.binary_cross_entropy_with_logits(
            outputs, targets, weight=weights, reduction="none"
        )


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(384, 7)
    loader = DataLoader(TensorDataset(x, (x[:, :1] > 0).float()), batch_size=16)
    model = nn.Linear(7, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader
    )
    criterion = Weighted(start=2)
    for epoch in range(4):
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets, epoch)
            optimizer.zero_grad()
            accelerator.backward(loss)  # HERE
            optimizer.step()


if __name__ == "__main__":
    main()
