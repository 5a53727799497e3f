"""Trains the comparer; the model is created on the meta device and moved after the optimizer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from comparer import Comparer, Pairs
from torch import nn
from torch.utils.data import DataLoader


def initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        module.reset_parameters()


def main(epochs: int = 3) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = Comparer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.to_empty(device=device).apply(initialise)

    loader = DataLoader(Pairs(256), batch_size=16, shuffle=True)
    for epoch in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
