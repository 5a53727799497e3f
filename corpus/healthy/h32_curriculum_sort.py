"""Learn to sort: sequences get longer when the curriculum moves on."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Curriculum:
    stages = ((0, 4), (110, 8))

    def length(self, step):
        return max(length for start, length in self.stages if step >= start)


class SortNet(nn.Module):
    """Every position attends to all the others and votes for its rank."""

    def __init__(self, dim=48, max_len=8, values=40):
        super().__init__()
        self.emb = nn.Embedding(values, dim)
        self.len_emb = nn.Embedding(max_len + 1, dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
        self.rank = nn.Linear(dim, max_len)

    def forward(self, x):
        h = self.emb(x) + self.len_emb(torch.full_like(x, x.shape[1]))
        n = self.norm1(h)
        h = h + self.attn(n, n, n, need_weights=False)[0]
        h = h + self.ff(self.norm2(h))
        return self.rank(h)


def batch_of(length, size, g):
    x = torch.stack([torch.randperm(40, generator=g)[:length] for _ in range(size)])
    return x, x.argsort(dim=1).argsort(dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=260)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    plan, model = Curriculum(), SortNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(args.steps):
        length = plan.length(step)
        x, rank = batch_of(length, 64, g)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), rank.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            acc = (logits.argmax(-1) == rank).float().mean().item()
            print(f"step {step:3d} length {length} loss {loss.item():.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
