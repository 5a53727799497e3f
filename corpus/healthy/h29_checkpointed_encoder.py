"""A transformer encoder whose blocks are recomputed in the backward pass."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

TOKENS, LENGTH, DIM = 24, 16, 48


class Block(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(
            nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * DIM, DIM)
        )

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class MaskedModel(nn.Module):
    """Guesses the hidden tokens of a sequence."""

    def __init__(self, depth=2):
        super().__init__()
        self.embed = nn.Embedding(TOKENS + 1, DIM)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, DIM))
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])
        self.norm = nn.LayerNorm(DIM)
        self.out = nn.Linear(DIM, TOKENS)

    def forward(self, tokens):
        h = self.embed(tokens) + self.position
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return self.out(self.norm(h))


def make_batch(n):
    """Counting sequences from a random start; a fifth of the tokens are hidden."""
    start = torch.randint(0, TOKENS, (n, 1))
    tokens = (start + torch.arange(LENGTH)) % TOKENS
    hidden = torch.rand(n, LENGTH) < 0.2
    return tokens.masked_fill(hidden, TOKENS), tokens.masked_fill(~hidden, -100)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = MaskedModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    model.train()
    for step in range(args.steps):
        tokens, labels = make_batch(24)
        logits = model(tokens)
        loss = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
