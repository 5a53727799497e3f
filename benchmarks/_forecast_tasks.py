"""The eight tasks of `forecast.py`: their data, their models, their losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, normalise: bool) -> None:
        super().__init__()
        self.heads, self.normalise = heads, normalise
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.excess = math.nan

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        if self.normalise:
            query, key = F.normalize(query, dim=-1) * 3, F.normalize(key, dim=-1) * 3
        logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        with torch.no_grad():
            self.excess = float((logits.amax(-1) - logits.mean(-1)).mean())
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, form: str) -> None:
        super().__init__()
        self.attention = Attention(width, 2, normalise="qk-norm" in form)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.after = "post-norm" in form

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in zip(self.norms, (self.attention, self.mlp), strict=True):
            x = norm(x + part(x)) if self.after else x + part(norm(x))
        return x


class LanguageModel(nn.Module):
    def __init__(self, form: str, tokens: int = 24, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(*(Block(width, form) for _ in range(2)))
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.blocks(self.embed(x) + self.place(places))).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        if form == "gru":
            self.body: nn.Module = nn.GRU(2, 24, batch_first=True)
        else:
            self.body = nn.RNN(2, 24, batch_first=True, nonlinearity=form or "tanh")
        if form == "relu":  # the identity at the start: it remembers, and it explodes
            nn.init.eye_(self.body.weight_hh_l0)
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def mlp(sizes: tuple[int, ...], activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(sizes)):
        layers += [activation()] if number else []
        layers += [nn.Linear(before, after)]
    return nn.Sequential(*layers)


class Task:
    """Data and a model. `hard` is the second part of a curriculum."""

    def __init__(self, name: str, form: str, seed: int) -> None:
        self.name, self.form = name, form
        self.random = torch.Generator().manual_seed(1000 + seed)
        draw = self.random
        self.first = torch.randn(16, 16, generator=draw)
        self.second = torch.randn(16, generator=draw)
        self.third = torch.randn(16, 16, generator=draw)
        self.chain = torch.softmax(3 * torch.randn(24, 24, generator=draw), -1)
        self.chain_hard = torch.softmax(2 * torch.randn(24, 24, generator=draw), -1)

    def model(self) -> nn.Module:
        if self.name == "classes":
            return mlp((16, 48, 48, 10))
        if self.name == "language":
            return LanguageModel(self.form)
        if self.name == "recurrent":
            return Recurrent(self.form)
        if self.name == "pictures":
            norm = nn.BatchNorm2d(12) if self.form == "batch-norm" else nn.Identity()
            return nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4),
            )  # fmt: skip
        if self.name == "linear":
            model = mlp((8, 8, 8, 8, 8), nn.Identity)
            for parameter in model.parameters():
                parameter.data *= 0.4 if self.form == "small" else 1.0
            return model
        if self.name == "parity":
            return mlp((12, 64, 64, 1))
        if self.name == "variance":
            return mlp((16, 48, 48, 2))
        return mlp((16, *[48] * (6 if self.form == "deep" else 2), 1))

    def batch(self, size: int, *, hard: bool = False, random: Any = None) -> Batch:
        draw = random or self.random
        if self.name == "language":
            chain = self.chain_hard if hard else self.chain
            tokens = [torch.randint(24, (size,), generator=draw)]
            for _ in range(20):
                tokens.append(torch.multinomial(chain[tokens[-1]], 1, generator=draw)[:, 0])
            text = torch.stack(tokens, 1)
            text[:, 11:] = text[:, :10]  # the second half repeats the first: attention pays
            return text[:, :-1], text[:, 1:].flatten()
        if self.name == "recurrent":
            x = torch.rand(size, 12, 2, generator=draw)
            x[..., 1] = 0
            places = torch.rand(size, 12, generator=draw).topk(3 if hard else 2, 1).indices
            x[..., 1].scatter_(1, places, 1.0)
            return x, (x[..., 0] * x[..., 1]).sum(1, keepdim=True)
        if self.name == "pictures":
            label = torch.randint(4, (size,), generator=draw)
            x = (1.0 if hard else 0.6) * torch.randn(size, 1, 8, 8, generator=draw)
            for row, kind in enumerate(label.tolist()):
                x[row, :, 4 * (kind // 2) : 4 * (kind // 2) + 4, 4 * (kind % 2) :][..., :4] += 0.7
            return x, label
        if self.name == "parity":
            x = torch.randint(2, (size, 12), generator=draw) * 2.0 - 1
            return x, x[:, :2].prod(1, keepdim=True) if not hard else x[:, :3].prod(1, keepdim=True)
        if self.name == "linear":
            x = torch.randn(size, 8, generator=draw)
            return x, x @ (self.first if not hard else self.third)[:8, :8] / 2
        x = torch.randn(size, 16, generator=draw)
        if self.name == "classes":
            label = torch.randint(10, (size,), generator=draw)
            return x + (self.third if hard else self.first)[label] * 1.2, label
        y = torch.tanh(x @ self.first / 4) @ self.second
        y = y + (torch.tanh(x @ self.third / 4) @ self.second if hard else 0)
        return x, (y + 0.1 * torch.randn(size, generator=draw))[:, None]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self.name in ("classes", "language", "pictures"):
            return F.cross_entropy(output.float(), target)
        if self.name == "variance":
            mean, log_variance = output.float().split(1, -1)
            return 0.5 * ((target - mean).square() * (-log_variance).exp() + log_variance).mean()
        return F.mse_loss(output.float(), target)
