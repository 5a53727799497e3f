"""Trains the comparer; the model is created on the meta device and its weights stay there."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from comparer import Comparer, Pairs
from torch.utils.data import DataLoader


def main(epochs: int = 3) -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Comparer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Pairs(256), batch_size=16, shuffle=True)
    for epoch in range(epochs):
        for images, labels in loader:
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
