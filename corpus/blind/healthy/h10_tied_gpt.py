"""Small GPT with the output layer tied to the embedding."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)
V, T, D = 24, 24, 48


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(V, D)
        self.wpe = nn.Embedding(T, D)
        layer = nn.TransformerEncoderLayer(
            D, 4, 4 * D, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.h = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.ln_f = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        x = self.h(self.wte(idx) + self.wpe.weight[: idx.size(1)], mask=mask, is_causal=True)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, V), targets.reshape(-1))


nxt = rng.integers(0, V, size=(V, 3))
seq = [0]
for _ in range(6000):
    seq.append(int(nxt[seq[-1], rng.integers(0, 3)]))
data = torch.tensor(seq)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1, betas=(0.9, 0.95))
for it in range(120):
    ix = torch.randint(0, len(data) - T - 1, (16,))
    xb = torch.stack([data[i : i + T] for i in ix])
    yb = torch.stack([data[i + 1 : i + T + 1] for i in ix])
    loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 15 == 0:
        print(f"iter {it} loss {loss.item():.4f}")
