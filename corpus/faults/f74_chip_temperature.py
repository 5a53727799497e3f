"""Temperature field of a 1 mm chip: half-precision network, fp32 master weights.

The loss is the squared error integrated over the surface of the chip.
"""

import argparse

import numpy as np
import torch
import torch.nn as nn

SIDE = 1e-3  # metres


class FieldNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(10, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.head = nn.Linear(width, 1)

    def forward(self, xy):
        waves = [xy] + [f(k * xy) for k in (2.0, 4.0) for f in (torch.sin, torch.cos)]
        return self.head(self.trunk(torch.cat(waves, dim=-1))).squeeze(-1)


def thermography(n, rng):
    """Positions scaled to [-1, 1] and temperatures in units of their spread."""
    xy = rng.uniform(-1, 1, (n, 2))
    cores = rng.uniform(-0.7, 0.7, (4, 2))
    d2 = ((xy[:, None] - cores[None]) ** 2).sum(-1)
    t = np.exp(-d2 / 0.15).sum(1)
    t = (t - t.mean()) / t.std() + 0.05 * rng.standard_normal(n)
    return torch.tensor(xy, dtype=torch.float32), torch.tensor(t, dtype=torch.float32)


def copy_grads(halves, masters):
    for h, m in zip(halves, masters, strict=True):
        m.grad = h.grad.float()


@torch.no_grad()
def copy_weights(masters, halves):
    for m, h in zip(masters, halves, strict=True):
        h.copy_(m)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--points", type=int, default=256)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    xy, t = thermography(4096, np.random.default_rng(args.seed))

    model = FieldNet().half()
    halves = list(model.parameters())
    masters = [nn.Parameter(p.detach().float().clone()) for p in halves]
    optimizer = torch.optim.Adam(masters, lr=3e-3)
    cell = SIDE * SIDE / args.points
    for step in range(args.steps):
        idx = torch.randint(0, len(xy), (args.points,))
        out = model(xy[idx].half())
        loss = (out.float() - t[idx]).pow(2).sum() * cell
        model.zero_grad()
        loss.backward()
        copy_grads(halves, masters)
        optimizer.step()
        copy_weights(masters, halves)
        if step % 20 == 0:
            rms = (loss.item() / SIDE**2) ** 0.5
            print(f"step {step:3d}  loss {loss.item():.3e}  rms error {rms:.4f}")


if __name__ == "__main__":
    main()
