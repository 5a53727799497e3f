"""Forecast waves with a plain recurrent network; the state is carried on, detached."""

import argparse
import random

import numpy as np
import torch
from torch import nn

CHUNK, STREAMS, SENSORS = 12, 16, 4


class PlainRNN(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        # Units remember best when they start near the identity.
        self.recurrent = nn.Parameter(torch.eye(hidden) + 0.02 * torch.randn(hidden, hidden))
        self.inp = nn.Linear(SENSORS, hidden)
        self.act = nn.LeakyReLU(0.3)
        self.out = nn.Linear(hidden, SENSORS)
        self.hidden = hidden

    def forward(self, x, state):
        forecasts = []
        for t in range(x.shape[1]):
            state = self.act(state @ self.recurrent + self.inp(x[:, t]))
            forecasts.append(self.out(state))
        return torch.stack(forecasts, dim=1), state


def make_waves(length):
    """Each sensor of each stream swings with its own period and phase."""
    t = np.arange(length)[None, :, None]
    period = np.random.uniform(15, 40, (STREAMS, 1, SENSORS))
    phase = np.random.uniform(0, 2 * np.pi, (STREAMS, 1, SENSORS))
    waves = np.sin(2 * np.pi * t / period + phase)
    waves = waves + 0.05 * np.random.randn(STREAMS, length, SENSORS)
    return torch.tensor(waves, dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--lr", type=float, default=1e-5)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    waves = make_waves(args.chunks * CHUNK + 1)
    model = PlainRNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    criterion = nn.MSELoss()
    state = torch.zeros(STREAMS, model.hidden)
    for i in range(args.chunks):
        window = waves[:, i * CHUNK : (i + 1) * CHUNK + 1]
        forecast, state = model(window[:, :-1], state)
        state = state.detach()
        loss = criterion(forecast, window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 5 == 0:
            print(f"chunk {i:3d} loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
