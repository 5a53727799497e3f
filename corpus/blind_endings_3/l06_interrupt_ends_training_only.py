"""Ctrl-C ends the training early on purpose; the model is then evaluated and saved."""

import time

import torch
from torch import nn


def train(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        x = torch.randn(16, 4)
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 80:
            print("signal me", flush=True)
        time.sleep(0.02)


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    try:
        train(model, 100_000)
    except KeyboardInterrupt:
        print("-" * 40)
        print("leaving the training early")
    with torch.no_grad():
        x = torch.randn(100, 4)
        print("test loss", (model(x).squeeze(1) - x.mean(1)).pow(2).mean().item())
    torch.save(model.state_dict(), "final.pt")


if __name__ == "__main__":
    main()
