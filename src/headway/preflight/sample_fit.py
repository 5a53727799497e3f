"""How the samples of a batch are fitted: which are right, and how sure the model is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST = 1024
"""Samples of one batch."""


@dataclass(slots=True)
class Fit:
    """One batch."""

    step: int
    loss: float
    labels: list[int]
    guesses: list[int]
    surest: list[float]
    """The largest probability of each sample."""

    @staticmethod
    def summary(
        early: Sequence[Fit], late: Sequence[Fit], counts: Mapping[int, int], classes: int
    ) -> dict[str, Any]:
        """The early and the late batches in a few numbers."""
        total = sum(counts.values())
        shares = [count / total for count in counts.values()] if total else []
        last = list(late)[len(late) // 3 :] or list(late)
        facts: dict[str, Any] = {
            "classes": classes,
            "seen": len(counts),
            "entropy": -sum(share * math.log(share) for share in shares if share > 0),
            "majority": max(shares, default=1.0),
            "early_loss": _mean([item.loss for item in early]),
            "late_loss": _mean([item.loss for item in last]),
            "late_steps": len(last),
        }
        return facts | _late(last)


def fit_of(logits: Tensor, labels: Tensor, step: int) -> Fit:
    """A batch, from its logits or log-probabilities."""
    with torch.no_grad():
        log_p = torch.log_softmax(logits[:MOST], 1)
        labels = labels[:MOST]
        sound = ~log_p.isnan().any(1)  # a row of NaN is neither right nor wrong
        log_p, labels = log_p[sound], labels[sound]
        loss = float(-log_p.gather(1, labels[:, None]).mean())
        surest, guesses = log_p.exp().max(1)
    return Fit(step, loss, labels.tolist(), guesses.tolist(), surest.tolist())


def _late(fits: Sequence[Fit]) -> dict[str, Any]:
    rows = [
        (sure, label, guess)
        for fit in fits
        for sure, label, guess in zip(fit.surest, fit.labels, fit.guesses, strict=True)
    ]
    if not rows:
        return {}
    wrong = sum(label != guess for _, label, guess in rows) / len(rows)
    rows.sort(reverse=True)
    top = rows[: max(len(rows) // 4, 1)]
    recalls: dict[int, list[int]] = {}
    confused: dict[tuple[int, int], int] = {}
    for _, label, guess in rows:
        hits = recalls.setdefault(label, [0, 0])
        hits[0] += label == guess
        hits[1] += 1
        if label != guess:
            confused[label, guess] = confused.get((label, guess), 0) + 1
    return {
        "late_samples": len(rows),
        "wrong": wrong,
        "wrong_when_sure": sum(label != guess for _, label, guess in top) / len(top),
        "sureness": sum(sure for sure, _, _ in top) / len(top),
        "sureness_of_rest": sum(sure for sure, _, _ in rows[len(top) :])
        / max(len(rows) - len(top), 1),
        "class_errors": [
            [label, 1 - hits / count, count] for label, (hits, count) in sorted(recalls.items())
        ][:100],
        "pair": _pair(recalls, confused),
    }


def _pair(recalls: dict[int, list[int]], confused: dict[tuple[int, int], int]) -> list[float]:
    """The two classes taken for each other most: [a, b, a as b, b as a, error of the rest]."""
    best: list[float] = []
    for (a, b), count in confused.items():
        back = confused.get((b, a), 0)
        if a < b and back:
            there, here = count / recalls[a][1], back / recalls[b][1]
            if not best or min(there, here) > min(best[2], best[3]):
                rest = [hits for label, hits in recalls.items() if label not in (a, b)]
                seen = sum(item[1] for item in rest)
                error = 1 - sum(item[0] for item in rest) / seen if seen else 1.0
                best = [a, b, there, here, error, float(min(recalls[a][1], recalls[b][1]))]
    return best


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
