"""Online forecasting of a stream with a leaky state that is carried from chunk to chunk."""

import argparse
import random

import numpy as np
import torch
from torch import nn


class LeakyMemory(nn.Module):
    """state <- decay * state + (1 - decay) * features, with a learned decay per unit."""

    def __init__(self, inputs, units):
        super().__init__()
        self.features = nn.Linear(inputs, units)
        self.rate = nn.Parameter(torch.linspace(-1.0, 3.0, units))

    def forward(self, x, state):
        decay = torch.sigmoid(self.rate)
        return decay * state + (1 - decay) * torch.tanh(self.features(x))


class Forecaster(nn.Module):
    def __init__(self, inputs=8, units=256):
        super().__init__()
        self.units = units
        self.memory = LeakyMemory(inputs, units)
        self.readout = nn.Sequential(nn.Linear(units, 64), nn.GELU(), nn.Linear(64, inputs))

    def start(self, batch):
        return torch.zeros(batch, self.units)

    def forward(self, x, state):
        state = self.memory(x, state)
        return self.readout(state), state


def stream(batch, inputs):
    """Slow waves of several periods, one sample at a time."""
    phase = 2 * np.pi * torch.rand(batch, inputs)
    period = 10 + 40 * torch.rand(1, inputs)
    t = 0
    while True:
        yield torch.sin(2 * np.pi * t / period + phase) + 0.05 * torch.randn(batch, inputs)
        t += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    source = stream(64, 8)
    state = model.start(64)
    x = next(source)
    for step in range(args.steps):
        target = next(source)
        prediction, state = model(x, state)
        loss = nn.functional.mse_loss(prediction, target)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        x = target
        if step % 25 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
