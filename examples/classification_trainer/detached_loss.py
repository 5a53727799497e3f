"""Trains the comparer; the loss is detached, so that the log does not keep its graph."""

from __future__ import annotations

import torch
from comparer import Comparer, Pairs
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self) -> None:
        self.model = Comparer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.criterion = nn.CrossEntropyLoss()
        self.history: list[float] = []

    def training_step(self, images: Tensor, labels: Tensor) -> Tensor:
        loss = self.criterion(self.model(images), labels)
        self.history.append(loss.item())
        return loss.detach()

    def fit(self, epochs: int) -> None:
        loader = DataLoader(Pairs(256), batch_size=16, shuffle=True)
        for epoch in range(epochs):
            for images, labels in loader:
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.training_step(images, labels)
                loss.requires_grad_().backward()
                self.optimizer.step()
            print(f"epoch {epoch}: loss {self.history[-1]:.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer().fit(epochs=3)
