import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="mixer on short token sequences")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--dim", type=int, default=48)
parser.add_argument("--seq-len", type=int, default=16)
parser.add_argument("--vocab", type=int, default=24)
parser.add_argument("--iters", type=int, default=250)
opt = parser.parse_known_args()[0]

torch.manual_seed(opt.seed)
rng = np.random.RandomState(opt.seed)


class MixerBlock(nn.Module):
    def __init__(self, dim, seq_len):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.ln2 = nn.LayerNorm(dim)
        self.tokens = nn.Linear(seq_len, seq_len)
        self.channels = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.tokens(self.ln1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.ln2(x))


class Mixer(nn.Module):
    def __init__(self, vocab, dim, seq_len, depth, n_classes):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = [MixerBlock(dim, seq_len) for _ in range(depth)]
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, idx):
        h = self.embed(idx)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(dim=1))


def sample(n):
    """Class = which third of the vocabulary wins between first and last position."""
    tokens = rng.randint(0, opt.vocab, size=(n, opt.seq_len))
    label = (tokens[:, 0] + tokens[:, -1] + tokens[:, opt.seq_len // 2]) % 3
    return torch.from_numpy(tokens), torch.from_numpy(label)


X, Y = sample(768)
model = Mixer(opt.vocab, opt.dim, opt.seq_len, opt.depth, 3)
n_params = sum(p.numel() for p in model.parameters())
print(f"model has {n_params} parameters")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

it = 0
avg = None
while it < opt.iters:
    pick = torch.randint(0, len(X), (64,))
    logits = model(X[pick])
    loss = F.cross_entropy(logits, Y[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
    it += 1
    if it % 25 == 0:
        acc = (logits.argmax(1) == Y[pick]).float().mean().item()
        print(f"iter {it:4d} | loss {loss.item():.4f} | avg {avg:.4f} | acc {acc:.2f}")
