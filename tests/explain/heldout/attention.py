"""Attention whose rows are all masked, with and without the modules of torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.heldout.expected import expect
from torch import nn

import headway


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        x = self.embed(tokens)
        x, _ = self.attention(x, x, x, key_padding_mask=tokens == 0)  # born here: mha_all_padding
        return self.head(x.mean(1))


@expect("softmax mask|inf", "softmax|_softmax", "attention", samples=(2,))
def mha_all_padding(run_dir):
    torch.manual_seed(0)
    model = TextClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = [(torch.randint(1, 20, (4, 6)), torch.randint(0, 3, (4,))) for _ in range(4)]
    for tokens, _ in data:
        tokens[:, 4:] = 0
    data[2][0][2] = 0
    guard = headway.Guard(model, optimizer, run_dir=run_dir)
    for tokens, label in guard(data):
        loss = F.cross_entropy(model(tokens), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return guard


class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.register_buffer("causal", torch.full((5, 5), -math.inf).triu(1))

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + self.causal
        scores = scores.masked_fill(~keep[:, None, :], -math.inf)
        weights = scores.softmax(dim=-1)  # born here: left_padding_under_causal_mask
        return weights @ v


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"attn": Head(8)}) for _ in range(2)])

    def forward(self, x, keep):
        for layer in self.layers:
            x = x + layer["attn"](x, keep)
        return x


@expect("softmax mask|inf", "softmax|_softmax", "layers.0.attn", samples=(1,))
def left_padding_under_causal_mask(run_dir):
    # The first token is padding: the causal mask leaves it nothing to look at.
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = [(torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)) for _ in range(4)]
    data[2][1][1, 0] = False
    guard = headway.Guard(model, optimizer, run_dir=run_dir)
    for x, keep in guard(data):
        out = model(x, keep)
        loss = (out * keep[..., None]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return guard


class Pooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 1)

    def forward(self, x, lengths):
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        energy = self.score(x).squeeze(-1)
        energy = torch.where(mask, energy, torch.tensor(float("-inf")))
        # born here: attention_pooling_of_length_zero
        alpha = torch.exp(energy - energy.max(dim=1, keepdim=True).values)
        alpha = alpha / alpha.sum(1, keepdim=True)
        return (alpha[..., None] * x).sum(1)


@expect("inf", "sub", "pool", samples=(5,))
def attention_pooling_of_length_zero(run_dir):
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("pool", Pooling())
    model.add_module("out", nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [
        {
            "x": torch.randn(6, 4, 6),
            "lengths": torch.randint(1, 5, (6,)),
            "y": torch.zeros(6).long(),
        }
        for _ in range(4)
    ]
    data[2]["lengths"][5] = 0
    guard = headway.Guard(model, optimizer, run_dir=run_dir)
    for step, item in enumerate(guard(data)):
        pooled = model.pool(item["x"], item["lengths"])
        loss = F.cross_entropy(model.out(pooled), item["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return guard


@expect(
    "target mask inf",
    "cross_entropy|log_softmax|_log_softmax|cross_entropy_loss|nll_loss",
    samples=(0,),
)
def the_right_class_is_masked(run_dir):
    torch.manual_seed(0)
    net = nn.Linear(5, 6)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    banned = torch.zeros(6)
    banned[4:] = -math.inf
    data = [(torch.randn(4, 5), torch.randint(0, 4, (4,))) for _ in range(4)]
    data[2][1][0] = 5
    guard = headway.Guard(net, opt, run_dir=run_dir)
    for x, y in guard(data):
        logits = net(x) + banned
        loss = F.cross_entropy(logits, y)  # born here: the_right_class_is_masked
        loss.backward()
        opt.step()
        opt.zero_grad()
    guard.close()
    return guard
