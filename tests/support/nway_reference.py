"""The N-way loss as it is defined: every one of the B^N logits, in float64. Slow and plain.

Written from the formulas alone, with nothing of the package: broadcasting over N index axes, and
torch's own cross entropy with a target that is one on the hyper-diagonal.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LINES = [
    "product",
    "norm",
    "norm-mean",
    "leave-one-out",
    "variance",
    "std",
    "coordinate-std",
    "coordinate-variance",
    "coordinate-energy",
    "coordinate-spread",
    "coordinate-evenness",
    "coordinate-sixth",
]
PAIRS = ["cosine", "distance", "pairwise", "anchor"]


def spread_out(features: list[Tensor]) -> list[Tensor]:
    """f_k with N index axes, all but the k-th of size one, and the coordinates last."""
    n = len(features)
    return [
        f.view(*(f.shape[0] if axis == k else 1 for axis in range(n)), f.shape[1])
        for k, f in enumerate(features)
    ]


def dense_logits(score: str, features: list[Tensor]) -> Tensor:
    n = len(features)
    f = spread_out(features)
    S = sum(f[1:], f[0])
    Q = sum((x * x for x in f[1:]), f[0] * f[0])
    m = sum((x.abs() for x in f[1:]), f[0].abs()) / n
    V = Q - S * S / n
    if score == "product":
        out = f[0]
        for x in f[1:]:
            out = out * x
        return out.sum(-1)
    if score == "norm":
        return S.norm(dim=-1)
    if score == "norm-mean":
        return sum((S / S.norm(dim=-1, keepdim=True) * x / n for x in f), 0 * S).sum(-1)
    if score == "leave-one-out":
        return sum(((S - x) / (S - x).norm(dim=-1, keepdim=True) * x).sum(-1) for x in f)
    if score == "variance":
        return 1 - V.sum(-1)
    if score == "std":
        return 1 - V.sum(-1).abs().sqrt()
    if score == "coordinate-std":
        return 1 - V.abs().sqrt().mean(-1)
    if score == "coordinate-variance":
        return 1 - (V * V).sum(-1).sqrt()
    if score == "coordinate-energy":
        return 1 - Q.sqrt().sum(-1)
    if score == "coordinate-spread":
        return (m - math.sqrt(n) * m + Q.sqrt()).sum(-1)
    if score == "coordinate-evenness":
        return (m + math.sqrt(n) * m - Q.sqrt()).sum(-1)
    assert score == "coordinate-sixth"
    return (S / n - m**6 / 2).sum(-1)


def by_rotations(logits: Tensor, targets: Tensor, axes: str) -> Tensor:
    """As published: rotate the axes, softmax along the second, sum."""
    n = logits.dim()
    losses = []
    for r in range(n):
        order = [(r + step) % n for step in range(n)]
        losses.append(
            F.cross_entropy(logits.permute(order), targets.permute(order), reduction="sum")
        )
    if axes == "mean":
        return sum(losses[1:], losses[0]) / n
    return losses[0] + sum(losses[2:], losses[1]) / (n - 1)


def hyper_diagonal(like: Tensor) -> Tensor:
    targets = torch.zeros_like(like)
    for i in range(like.shape[0]):
        targets[(i,) * like.dim()] = 1
    return targets


def pair_losses(score: str, features: list[Tensor], axes: str) -> Tensor:
    n, B = len(features), features[0].shape[0]
    own = torch.arange(B)

    def both(matrix: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(F.cross_entropy(x, own, reduction="sum") for x in (matrix, matrix.T))

    mean = sum(features[1:], features[0]) / n
    if score in ("cosine", "distance"):
        matrix = torch.zeros(B, B, dtype=torch.float64)
        rows = []
        for i in range(B):
            row = []
            for j in range(B):
                if score == "distance":
                    row.append(-sum((f[i] - mean[j]).norm() for f in features) / n)
                else:
                    unit = mean[j] / mean[j].norm()
                    dots = [f[i] @ unit for f in features]
                    logs = [
                        d.log() if d > 0.05 else math.log(0.05) + (d - 0.05) / 0.05 for d in dots
                    ]
                    row.append((sum(logs) / n).exp())
            rows.append(torch.stack(row))
        matrix = torch.stack(rows)
        forth, back = both(SCALE * matrix)
        return (forth + back) / 2 if axes == "mean" else forth + back
    if score == "pairwise":
        along = []
        for k in range(n):
            others = [both(SCALE * features[o] @ features[k].T)[0] for o in range(n) if o != k]
            along.append(sum(others) / (n - 1))
        if axes == "mean":
            return sum(along) / n
        return along[1] + sum(x for k, x in enumerate(along) if k != 1) / (n - 1)
    captions = features[1:]
    first = sum(features[0] @ c.T for c in captions) / (2 * (n - 1))
    second = sum(c @ d.T for c in captions for d in captions) / (2 * (n - 1) ** 2)
    losses = [sum(both(SCALE * matrix)) / 2 for matrix in (first, second)]
    return sum(losses) / 2 if axes == "mean" else sum(losses)


SCALE = 1 / 0.07


def reference(
    features: list[Tensor],
    score: str,
    *,
    normalize: bool = True,
    axes: str = "mean",
    reduction: str = "mean",
    rescale: bool = True,
    targets: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    features = [f.double() for f in features]
    if normalize:
        features = [f / f.norm(dim=1, keepdim=True) for f in features]
    B, D = features[0].shape
    if score in PAIRS:
        value = pair_losses(score, features, axes)
    else:
        logits = SCALE * dense_logits(score, features)
        if score == "product" and normalize and rescale:
            logits = logits * D ** (len(features) / 2 - 1)
        if mask is not None:
            logits = (
                logits.masked_fill(~mask, -1e300) if mask.dtype == torch.bool else logits * mask
            )
        value = by_rotations(logits, hyper_diagonal(logits) if targets is None else targets, axes)
    return value / B if reduction == "mean" else value
