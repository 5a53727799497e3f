"""Self-supervised pretraining of a signal encoder: online network and EMA target."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(a, b, c):
    return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Linear(b, c))


class Encoder(nn.Module):
    def __init__(self, out=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
        )
        self.projector = mlp(128, 64, out)

    def forward(self, x):
        return self.projector(self.conv(x))


class BYOL(nn.Module):
    def __init__(self, momentum=0.99):
        super().__init__()
        self.online = Encoder()
        self.predictor = mlp(32, 64, 32)
        self.target = copy.deepcopy(self.online)
        self.momentum = momentum
        for p in self.target.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update_target(self):
        for o, t in zip(self.online.parameters(), self.target.parameters(), strict=True):
            t.lerp_(o, 1 - self.momentum)

    @staticmethod
    def regression(p, z):
        return 2 - 2 * F.cosine_similarity(p, z, dim=-1).mean()

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            za, zb = self.target(a), self.target(b)
        return 0.5 * (self.regression(pa, zb) + self.regression(pb, za))


def signals(n, g):
    t = torch.linspace(0, 1, 64)
    freq = torch.randint(2, 10, (n, 1), generator=g)
    second = torch.rand(n, 1, generator=g) * 12
    return torch.sin(6.283 * freq * t) + 0.5 * torch.sin(6.283 * second * t), freq.squeeze(1)


def view(x):
    scale = 0.7 + 0.6 * torch.rand(len(x), 1)
    shifted = torch.roll(x, int(torch.randint(0, 16, ())), dims=1)
    return (scale * shifted + 0.2 * torch.randn_like(x)).unsqueeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=180)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    data, _ = signals(1024, torch.Generator().manual_seed(args.seed))
    model = BYOL()
    learnable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learnable, lr=1e-3, weight_decay=1e-6)
    for step in range(1, args.steps + 1):
        x = data[torch.randint(0, len(data), (64,))]
        loss = model(view(x), view(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_target()
        if step % 20 == 0:
            with torch.no_grad():
                spread = F.normalize(model.online(view(data[:128])), dim=1).std(0).mean().item()
            print(f"step {step:4d} loss {loss.item():.4f} spread {spread:.4f}")


if __name__ == "__main__":
    main()
