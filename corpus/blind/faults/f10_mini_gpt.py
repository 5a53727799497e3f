"""A tiny GPT on a synthetic grammar; the loss is computed in forward."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab=24, d=48, layers=2, heads=4, block=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(block, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for blk in self.blocks:
            x = blk(x)
        logits = self.head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--learning_rate", type=float, default=0.3)
parser.add_argument("--max_iters", type=int, default=100)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)

seq = [0]
nxt = rng.integers(0, 24, size=(24, 3))
for _ in range(5000):
    seq.append(int(nxt[seq[-1], rng.integers(0, 3)]))
data = torch.tensor(seq)

model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
for it in range(args.max_iters):
    ix = torch.randint(len(data) - 33, (16,))
    xb = torch.stack([data[i : i + 32] for i in ix])
    yb = torch.stack([data[i + 1 : i + 33] for i in ix])
    _, loss = model(xb, yb)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")
