"""Where published forms of the N-way loss gave NaN or nothing; for the CPU and for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

GRAM = ["norm", "norm-mean", "variance", "std", "product", "pairwise", "anchor"]
"""The scores of one matrix product a line."""


def rows(seed: int = 0, n: int = 4, B: int = 6, D: int = 8) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(B, D, generator=draw, dtype=torch.float64) for _ in range(n)]


def zero_row() -> list[Tensor]:
    features = rows()
    for f in features:
        f[2] = 0
    features[1][4] = 0
    return features


def identical() -> list[Tensor]:
    return [rows()[0]] * 4


def identical_samples() -> list[Tensor]:
    return [f[:1].expand(6, -1).clone() for f in rows()]


def opposite() -> list[Tensor]:
    """S = 0 on the diagonal, and S − f_k along some lines."""
    one, two = rows()[:2]
    return [one, -one, two, -two]


def opposite_odd() -> list[Tensor]:
    one = rows()[0]
    return [one, -one, one]


def orthogonal() -> list[Tensor]:
    """Every dot product is 0: the published cosine had a NaN gradient."""
    eye = torch.eye(8, dtype=torch.float64)
    return [eye[:6], eye[:6].roll(1, 1), eye[:6].roll(2, 1), -eye[:6].roll(1, 1)]


def all_zero() -> list[Tensor]:
    return [torch.zeros(6, 8, dtype=torch.float64)] * 4


def one_coordinate_empty() -> list[Tensor]:
    features = rows()
    for f in features:
        f[:, 3] = 0
    return features


def huge() -> list[Tensor]:
    return [f * 1e30 for f in rows()]


def tiny() -> list[Tensor]:
    return [f * 1e-30 for f in rows()]


def far_apart() -> list[Tensor]:
    return [f * torch.logspace(-30, 30, 6, dtype=torch.float64)[:, None] for f in rows()]


def one_sample() -> list[Tensor]:
    return [f[:1] for f in rows()]


CASES = [
    zero_row,
    identical,
    identical_samples,
    opposite,
    opposite_odd,
    orthogonal,
    all_zero,
    one_coordinate_empty,
    huge,
    tiny,
    far_apart,
    one_sample,
]


def leaves(features: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    most = torch.finfo(dtype).max
    return [f.clamp(-most, most).to(dtype).clone().requires_grad_() for f in features]
