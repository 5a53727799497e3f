"""Trains the comparer in fp16; the loss is summed, so that an epoch adds up to its mean."""

from __future__ import annotations

import torch
from comparer import Comparer, Pairs
from torch import nn
from torch.utils.data import DataLoader


def main(epochs: int = 3) -> None:
    torch.manual_seed(0)
    model = Comparer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    data = Pairs(160_000)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    for epoch in range(epochs):
        epoch_loss = 0.0
        for images, labels in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = criterion(model(images), labels) / len(data)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        print(f"epoch {epoch}: loss {epoch_loss:.4f}")


if __name__ == "__main__":
    main()
