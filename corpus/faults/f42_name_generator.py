"""A small GPT that learns to spell made-up place names."""

import argparse
import random

import torch
import torch.nn as nn
from torch.nn import functional as F

VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstv"


def place_names(n, rng):
    out = []
    for _ in range(n):
        syllables = rng.randint(3, 5)
        out.append("".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(syllables)))
    return out


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for z in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, block_size, dim=64, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(block_size, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.shape[1])
        logits = self.head(self.ln(self.blocks(self.tok(idx) + self.pos(pos))))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--block-size", type=int, default=16)
    args, _ = ap.parse_known_args()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)

    text = ".".join(place_names(3000, rng))
    stoi = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([stoi[c] for c in text])
    model = GPT(len(stoi), args.block_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99))
    for it in range(300):
        start = torch.randint(len(data) - args.block_size - 1, (32,))
        x = torch.stack([data[i : i + args.block_size] for i in start])
        y = torch.stack([data[i + 1 : i + 1 + args.block_size] for i in start])
        _, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if it % 25 == 0 or it == 299:
            print(f"iter {it}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
