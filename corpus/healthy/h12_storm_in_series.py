"""River level model trained as the data come in; a storm passes through half way."""

import argparse
import sys

import numpy as np
import torch
from torch import nn


class RiverStream:
    def __init__(self, seed, storm=(150, 153)):
        self.rng = np.random.default_rng(seed)
        self.storm = storm

    def batch(self, step, size=64):
        rain = self.rng.gamma(2.0, 0.5, (size, 12)).astype(np.float32) - 1.0
        if self.storm[0] <= step < self.storm[1]:
            rain *= 6.0
        decay = np.exp(-np.arange(12) / 4).astype(np.float32)
        level = rain @ decay / 2 + 0.2 * np.maximum(rain[:, 0], 0) * rain[:, 1]
        level = level + 0.1 * self.rng.standard_normal(size).astype(np.float32)
        return torch.from_numpy(rain), torch.from_numpy(level.astype(np.float32))


def model():
    return nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    args, _ = parser.parse_known_args(argv)
    torch.manual_seed(args.seed)
    stream = RiverStream(args.seed)
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    worst, kept = 0.0, []
    for step in range(args.steps):
        rain, level = stream.batch(step)
        loss = nn.functional.mse_loss(net(rain).squeeze(1), level)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), max_norm=5.0)
        optimizer.step()
        worst = max(worst, loss.item()) if step > 20 else 0.0
        kept.append(loss.item())
        if step % 15 == 14:
            print(f"step {step + 1:3d} mse {np.mean(kept[-15:]):.4f} worst so far {worst:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
