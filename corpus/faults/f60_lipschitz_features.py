"""Distance-aware regression: a fixed Lipschitz feature map with a trained read-out."""

import argparse
import itertools

import torch
from torch import nn
from torch.nn.utils import spectral_norm


class LipschitzFeatures(nn.Module):
    """Random features whose layers are scaled to unit spectral norm."""

    def __init__(self, dim_in, width=128, depth=3):
        super().__init__()
        dims = [dim_in] + [width] * depth
        self.layers = nn.ModuleList(
            spectral_norm(nn.Linear(a, b)) for a, b in itertools.pairwise(dims)
        )

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class DistanceAware(nn.Module):
    def __init__(self, dim_in):
        super().__init__()
        self.features = LipschitzFeatures(dim_in).eval().requires_grad_(False)
        self.readout = nn.Sequential(nn.Linear(128, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.readout(self.features(x)).squeeze(-1)


def terrain(n, g):
    xy = torch.rand(n, 8, generator=g) * 4 - 2
    height = torch.sin(xy[:, 0]) * torch.cos(xy[:, 1]) + 0.3 * xy[:, 2] * xy[:, 3]
    return xy, height + 0.02 * torch.randn(n, generator=g)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=200)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    x, y = terrain(1024, g)
    model = DistanceAware(8)
    optimizer = torch.optim.Adam(model.readout.parameters(), lr=2e-3)
    huber = nn.HuberLoss()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True, generator=g
    )
    step = 0
    while step < args.steps:
        for xb, yb in loader:
            loss = huber(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                scale = model.features(xb).std().item()
                print(f"{step:4d} huber {loss.item():.4f} feature std {scale:.3g}")


if __name__ == "__main__":
    main()
