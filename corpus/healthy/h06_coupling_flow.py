"""Density estimation with affine coupling layers, trained by maximum likelihood."""

import argparse
import math

import torch
import torch.nn as nn


class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip):
        super().__init__()
        self.flip, self.half = flip, dim // 2
        self.net = nn.Sequential(
            nn.Linear(self.half, hidden), nn.Tanh(), nn.Linear(hidden, 2 * (dim - self.half))
        )

    def forward(self, x):
        a, b = x[:, : self.half], x[:, self.half :]
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, dim=1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], dim=1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, dim=4, hidden=48, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(dim, hidden, i % 2 == 1) for i in range(depth))
        self.log_scale = nn.Parameter(torch.zeros(dim))

    def log_prob(self, x):
        z, logdet = x * self.log_scale.exp(), self.log_scale.sum()
        for layer in self.layers:
            z, ld = layer(z)
            logdet = logdet + ld
        base = -0.5 * (z**2).sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)
        return base + logdet


def ribbons(n, g):
    """Points on thin curved sheets, so that the density is well above one."""
    t = torch.rand(n, 2, generator=g) * 2 - 1
    noise = 0.04 * torch.randn(n, 4, generator=g)
    clean = torch.stack([t[:, 0], t[:, 0] ** 2 / 2, t[:, 1], torch.sin(2 * t[:, 1]) / 2], 1)
    return clean + noise


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=220)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    train, test = ribbons(4000, g), ribbons(500, g)
    flow = Flow()
    opt = torch.optim.Adam(flow.parameters(), lr=3e-3)
    for step in range(1, args.steps + 1):
        x = train[torch.randint(0, len(train), (128,), generator=g)]
        nll = -flow.log_prob(x).mean()
        opt.zero_grad()
        nll.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
        opt.step()
        if step % 30 == 0:
            with torch.no_grad():
                held_out = -flow.log_prob(test).mean().item()
            print(f"step {step:4d}  nll {nll.item():8.4f}  test {held_out:8.4f}")


if __name__ == "__main__":
    main()
