"""The stable ops, each beside the plain op it stands for, for the tests of numerics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway import numerics

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FULL = [torch.float64, torch.float32]
MASK = torch.tensor([True, False, True, True, False, True])
KEPT = MASK.nonzero().flatten()
"""The same as indices: the number of results is then known, as torch.compile wants it."""


@dataclass(frozen=True)
class Case:
    """An op on rows of six, and the plain one."""

    name: str
    stable: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: int = 1
    positive: bool = False


def plain_masked_mean(x: Tensor) -> Tensor:
    mask = MASK.to(x.device)
    return (x * mask).sum(-1) / mask.sum(-1)


def plain_masked_softmax(x: Tensor) -> Tensor:
    return x.masked_fill(~MASK.to(x.device), -torch.inf).softmax(-1)


CASES = [
    Case("sqrt", numerics.sqrt, torch.sqrt, positive=True),
    Case("log", numerics.log, torch.log, positive=True),
    Case("exp", numerics.exp, torch.exp),
    Case("divide", numerics.divide, torch.div, inputs=2),
    Case("norm", numerics.norm, lambda x: torch.linalg.vector_norm(x, dim=-1)),
    Case(
        "normalize",
        numerics.normalize,
        lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    ),
    Case("std", numerics.std, lambda x: x.std(-1)),
    Case("var", numerics.var, lambda x: x.var(-1)),
    Case(
        "cosine_similarity",
        numerics.cosine_similarity,
        lambda a, b: F.cosine_similarity(a, b, -1, eps=0),
        inputs=2,
    ),
    Case("logsumexp", numerics.logsumexp, lambda x: x.logsumexp(-1)),
    Case(
        "masked_mean", lambda x: numerics.masked_mean(x, MASK.to(x.device), -1), plain_masked_mean
    ),
    Case(
        "masked_softmax",
        lambda x: numerics.masked_softmax(x, MASK.to(x.device)),
        plain_masked_softmax,
    ),
    Case(
        "masked_log_softmax",
        lambda x: numerics.masked_log_softmax(x, MASK.to(x.device))[..., KEPT.to(x.device)],
        lambda x: x[..., KEPT.to(x.device)].log_softmax(-1),
    ),
]
BY_NAME = {case.name: case for case in CASES}


def regular(case: Case, dtype: torch.dtype = torch.float64, rows: int = 4) -> list[Tensor]:
    """Inputs away from every singular point."""
    maker = torch.Generator().manual_seed(7)
    made = []
    for _ in range(case.inputs):
        x = torch.randn(rows, 6, generator=maker, dtype=torch.float64)
        x = torch.where(x < 0, x - 0.3, x + 0.3)
        made.append((x.abs() if case.positive else x).to(dtype).requires_grad_())
    return made


def value_and_gradients(
    op: Callable[..., Tensor], inputs: list[Tensor]
) -> tuple[Tensor, tuple[Any, ...]]:
    """The value, and the gradient of a sum with unequal weights."""
    inputs = [item.detach().clone().requires_grad_() for item in inputs]
    value = op(*inputs)
    weights = torch.linspace(0.5, 1.0, max(value.numel(), 1), dtype=torch.float64)
    weights = weights[: value.numel()].reshape(value.shape).to(value.device, value.dtype)
    return value.detach(), torch.autograd.grad(value, inputs, weights)
