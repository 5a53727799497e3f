"""The checkpoint goes to a file whose device has no space left."""

import os

import torch
from torch import nn

TARGET = os.environ.get("CHECKPOINT", "/dev/full")


class Checkpointer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def save(self, path, epoch):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": epoch,
        }
        with open(path, "wb") as out:  # HERE
            torch.save(state, out)  # HERE


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpointer = Checkpointer(model, optimizer)
    checkpointer.save("epoch_start.pt", -1)
    for epoch in range(3):
        for _ in range(30):
            x = torch.randn(24, 16)
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) / 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpointer.save(TARGET if epoch == 1 else f"epoch{epoch}.pt", epoch)


if __name__ == "__main__":
    main()
