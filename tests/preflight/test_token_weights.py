"""Gradient accumulation over micro-batches with different token counts."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.core.findings import Finding
from headway.preflight.runner import run_check

V, PAD = 20, 0


def found(work: Callable[[], object]) -> list[Finding]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == "HD211"]


def batch(*, even: bool) -> tuple[Tensor, Tensor]:
    """Two rows of 4 to 24 tokens, padded."""
    lengths = [12, 12] if even else torch.randint(4, 25, (2,)).tolist()
    rows = [F.pad(torch.randint(1, V, (n,)), (0, max(lengths) + 1 - n)) for n in lengths]
    text = torch.stack(rows)
    return text[:, :-1], text[:, 1:]


def train(kind: str, *, even: bool = False) -> Callable[[], list[Tensor]]:
    def work() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(V, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, V))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(4):
            batches = [batch(even=even) for _ in range(3)]
            labels = sum(int((y != PAD).sum()) for _, y in batches)
            for x, y in batches if kind != "one batch" else batches[:1]:
                logits = model(x).reshape(-1, V)
                if kind in ("masked mean", "masked sum"):
                    single = F.cross_entropy(logits, y.reshape(-1), reduction="none")
                    mask = (y != PAD).reshape(-1).float()
                    total = (single * mask).sum()
                    loss = total / labels if kind == "masked sum" else total / mask.sum() / 3
                elif kind == "sum":
                    total = F.cross_entropy(
                        logits, y.reshape(-1), ignore_index=PAD, reduction="sum"
                    )
                    loss = total / labels
                else:
                    mean = F.cross_entropy(logits, y.reshape(-1), ignore_index=PAD)
                    weighted = mean * (int((y != PAD).sum()) / labels)
                    loss = weighted if kind == "weighted" else mean / 3
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    return work


@pytest.mark.parametrize("kind", ["mean", "masked mean"])
def test_means_of_different_counts(kind: str) -> None:
    [finding] = found(train(kind))
    assert "3 micro-batches" in finding.message
    assert (finding.where.file or "").endswith("test_token_weights.py")


@pytest.mark.parametrize("kind", ["sum", "weighted", "one batch", "masked sum"])
def test_tokens_of_one_weight(kind: str) -> None:
    assert not found(train(kind))


def test_micro_batches_of_one_length() -> None:
    assert not found(train("mean", even=True))


def test_asking_for_the_weight_leaves_the_training_as_it_is() -> None:
    kept: list[Tensor] = []
    run_check(lambda: kept.extend(train("mean")()), max_steps=None)
    pairs = zip(train("mean")(), kept, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
