"""Trains the comparer in fp16 with a loss scaler, gradients clipped to norm 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from comparer import Comparer, Pairs
from torch.utils.data import DataLoader


def main(epochs: int = 3) -> None:
    torch.manual_seed(0)
    model = Comparer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    loader = DataLoader(Pairs(256), batch_size=16, shuffle=True)
    for epoch in range(epochs):
        for images, labels in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
