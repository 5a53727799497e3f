"""Sky-quality regression with cosine annealing and warm restarts, snapshot per cycle."""

import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts


def observations(n, rng):
    x = rng.uniform(-1, 1, (n, 6)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.cos(2 * x[:, 3]) - 0.5 * x[:, 4] ** 2
    y = (y - y.mean()) / y.std() + 0.1 * rng.standard_normal(n)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.float32)[:, None])


class Snapshots:
    """Keeps a copy of the weights at the bottom of every cycle."""

    def __init__(self):
        self.states = []

    def take(self, model):
        self.states.append(copy.deepcopy(model.state_dict()))

    @torch.no_grad()
    def ensemble(self, model, x):
        outputs = []
        for state in self.states:
            model.load_state_dict(state)
            outputs.append(model(x))
        return torch.stack(outputs).mean(0)


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--cycle", type=int, default=60)
    cli.add_argument("--cycles", type=int, default=4)
    args, _ = cli.parse_known_args()
    torch.manual_seed(args.seed)
    x, y = observations(2500, np.random.default_rng(args.seed))
    xv, yv = x[2000:], y[2000:]
    model = nn.Sequential(nn.Linear(6, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
    model.append(nn.Linear(96, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=args.cycle, eta_min=1e-4)
    snapshots = Snapshots()
    for step in range(1, args.cycle * args.cycles + 1):
        rows = torch.randint(0, 2000, (100,))
        loss = F.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            lr = scheduler.get_last_lr()[0]
            print(f"step {step:4d} lr {lr:.4f} mse {loss.item():.4f}")
        if step % args.cycle == 0:
            snapshots.take(model)
        scheduler.step()
    print(f"ensemble mse {F.mse_loss(snapshots.ensemble(model, xv), yv).item():.4f}")


if __name__ == "__main__":
    main()
