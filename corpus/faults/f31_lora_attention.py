"""Low-rank adaptation of a small attention model whose projections are fused in a list."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, LENGTH, CLASSES = 32, 16, 4


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.qkv = (self.to_q, self.to_k, self.to_v)  # one loop instead of three lines

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            layer(x).view(b, t, self.heads, d // self.heads).transpose(1, 2) for layer in self.qkv
        )
        h = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(h.transpose(1, 2).reshape(b, t, d))


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=1 / rank)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class Model(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = h + self.attention(self.norm1(h))
        return self.head(self.norm2(h).mean(dim=1))


def add_lora(model, targets=("to_q", "to_v")):
    for param in model.parameters():
        param.requires_grad_(False)
    for name, module in list(model.named_modules()):
        child = name.rpartition(".")[2]
        if child in targets:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, child, LoRALinear(module))
    for param in model.head.parameters():
        param.requires_grad_(True)


def make_batch(n):
    labels = torch.randint(0, CLASSES, (n,))
    tokens = torch.randint(CLASSES, VOCAB, (n, LENGTH))
    tokens[:, ::5] = labels[:, None]
    return tokens, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = Model()
    add_lora(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable parameters: {sum(p.numel() for p in trainable)}")
    optimizer = torch.optim.AdamW(trainable, lr=3e-3)
    for step in range(100):
        tokens, labels = make_batch(32)
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
