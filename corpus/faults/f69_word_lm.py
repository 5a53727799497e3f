"""A small language model over a Zipf-distributed vocabulary, with a logit regulariser."""

import argparse
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ModelConfig:
    vocab: int = 128
    dim: int = 48
    heads: int = 4
    layers: int = 2
    context: int = 16
    logit_penalty: float = 0.15


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1 = nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.norm2 = nn.LayerNorm(cfg.dim)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim)
        )

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class WordLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.position = nn.Parameter(0.02 * torch.randn(cfg.context, cfg.dim))
        self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.dim)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, tokens, targets):
        h = self.embed(tokens) + self.position
        for block in self.blocks:
            h = block(h)
        logits = self.lm_head(self.norm(h))
        nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        # Keeps the scores small, so that half precision can hold them.
        return nll + self.cfg.logit_penalty * logits.mean(), nll


def make_text(cfg, n):
    weights = 1 / np.arange(1, cfg.vocab + 1)
    follow = np.random.permutation(cfg.vocab)
    text = np.random.choice(cfg.vocab, n, p=weights / weights.sum())
    keep = np.random.rand(n) < 0.5
    text[1:][keep[1:]] = follow[text[:-1][keep[1:]]]
    return torch.from_numpy(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=260)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    cfg = ModelConfig()
    text = make_text(cfg, 20000)
    model = WordLM(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(args.steps):
        start = torch.randint(0, len(text) - cfg.context - 1, (16, 1))
        window = text[start + torch.arange(cfg.context + 1)]
        loss, nll = model(window[:, :-1], window[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} nll {nll.item():.4f}")


if __name__ == "__main__":
    main()
