"""Attention that collapses, output logits that drift, and runs where both are as they should be."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headway.preflight.runner import CheckResult, run_check

pytestmark = pytest.mark.slow  # whole trainings, each watched from end to end


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    torch.manual_seed(0)
    gc.collect()  # the models of the tests before would be found as well


def codes(checked: CheckResult) -> set[str]:
    if checked.error is not None:
        raise checked.error
    return {item.code for item in checked.report.findings if item.severity >= 20}


WIDE, HEADS, CLASSES = 16, 2, 8


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def sharpen(self) -> None:
        with torch.no_grad():
            self.qkv.weight[: 2 * WIDE].mul_(1.05)


class ByHand(Fused):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mask = torch.ones(scores.shape[-2:]).triu(1).bool()
        weights = F.dropout(scores.masked_fill(mask, -1e9).softmax(-1), 0.1, self.training)
        return weights @ v


class Einsum(Fused):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / 3, dim=-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v)


class Torchs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDE, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        out: torch.Tensor = self.attention(x, x, x, attn_mask=mask)[0]
        return out

    def sharpen(self) -> None:
        with torch.no_grad():
            self.attention.in_proj_weight[: 2 * WIDE].mul_(1.05)


class Model(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(CLASSES, WIDE), attention
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return self.head(self.norm(x + self.attention(x)))


def train(
    model: nn.Module,
    steps: int,
    after: Callable[[], object] = lambda: None,
    extra: Callable[[torch.Tensor], object] = lambda logits: 0.0,
    lr: float = 3e-3,
) -> CheckResult:
    def work() -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(steps):
            tokens = torch.randint(0, CLASSES, (8, 12))
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), (tokens[:, :-1] * 3 % 8).flatten())
            optimizer.zero_grad()
            (loss + extra(logits)).backward()
            optimizer.step()
            after()

    return run_check(work, max_steps=steps)


@pytest.mark.parametrize("kind", [Fused, ByHand, Einsum, Torchs])
def test_attention_that_collapses(kind: type[Fused]) -> None:
    attention = kind()
    assert "HD317" in codes(train(Model(attention), 100, attention.sharpen))


@pytest.mark.parametrize("kind", [Fused, ByHand, Torchs])
def test_attention_that_trains(kind: type[Fused]) -> None:
    assert not codes(train(Model(kind()), 100)) & {"HD317", "HD318"}


def test_logits_that_drift() -> None:
    model = Model(Fused())
    found = train(model, 120, extra=lambda logits: -0.3 * logits.mean(), lr=1e-2)
    assert "HD318" in codes(found)


def test_confident_classifier() -> None:
    model = Model(Fused())
    assert "HD318" not in codes(train(model, 120, lr=3e-2))
