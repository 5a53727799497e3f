"""Next-note prediction with hand-written multi-head attention."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

NOTES, LENGTH = 24, 20


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH), 1).bool())

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(x)), self.split(self.to_v(x))
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores = scores.masked_fill(self.mask, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class MelodyModel(nn.Module):
    def __init__(self, dim=64, depth=2):
        super().__init__()
        self.note = nn.Embedding(NOTES, dim)
        self.place = nn.Embedding(LENGTH, dim)
        self.attn = nn.ModuleList(Attention(dim, 2) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
            for _ in range(depth)
        )
        self.out = nn.Linear(dim, NOTES)

    def forward(self, x):
        h = self.note(x) + self.place.weight
        for attn, mlp in zip(self.attn, self.mlp, strict=True):
            h = h + attn(h)
            h = h + mlp(h)
        return self.out(h)


def melodies(n, g):
    """Walks on a scale that repeat their opening motif."""
    motif = torch.randint(0, NOTES, (n, 5), generator=g)
    tune = torch.cat([motif, motif, (motif + 2) % NOTES, motif, motif[:, :1]], dim=1)
    blur = torch.rand(tune.shape, generator=g) < 0.05
    return torch.where(blur, torch.randint(0, NOTES, tune.shape, generator=g), tune)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--lr", type=float, default=1e-2)
    p.add_argument("--steps", type=int, default=200)
    args, _ = p.parse_known_args()
    torch.manual_seed(args.seed)
    tunes = melodies(1024, torch.Generator().manual_seed(args.seed))
    model = MelodyModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        batch = tunes[torch.randint(0, len(tunes), (32,))]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, NOTES), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
