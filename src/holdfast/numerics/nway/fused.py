"""The passes between the matrix products of `gram`, melted together by torch.compile.

Two functions, not one: the first reads a block and leaves a number per row, the second reads it
again and writes its gradient. In one function the compiler would keep what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def _logits(q: Tensor, row: Tensor | None, scale: Tensor, sign: int | None) -> Tensor:
    if sign is None or row is None:
        return q * scale
    return (q + row[:, None]).clamp_min(0).sqrt() * (scale * sign)


def _right(q: Tensor, diagonal: Tensor) -> Tensor:
    return torch.arange(q.shape[1], device=q.device)[None] == diagonal[:, None]


def _read(
    q: Tensor,
    row: Tensor | None,
    own: Tensor | None,
    scale: Tensor,
    diagonal: Tensor,
    sign: int | None,
) -> tuple[Tensor, Tensor]:
    """logsumexp of each row, and its loss."""
    logits = _logits(q, row, scale, sign)
    if own is not None:
        logits = torch.where(_right(q, diagonal), own[:, None] * scale, logits)
    largest = logits.amax(1, keepdim=True)
    total = (largest + (logits - largest).exp().sum(1, keepdim=True).log())[:, 0]
    if own is not None:
        return total, total - own * scale
    return total, total - logits.gather(1, diagonal[:, None])[:, 0]


def _write(
    q: Tensor,
    row: Tensor | None,
    least: Tensor | None,
    own: Tensor | None,
    scale: Tensor,
    diagonal: Tensor,
    total: Tensor,
    sign: int | None,
    narrow: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to q, and its sum over each row."""
    p = (_logits(q, row, scale, sign) - total[:, None]).exp()
    G = torch.where(_right(q, diagonal), p - 1 if own is None else 0.0, p)
    if row is not None and least is not None:
        G = G / torch.maximum((q + row[:, None]).clamp_min(0).sqrt(), least[:, None])
    out = G.to(narrow)
    return out, out.sum(1, dtype=q.dtype)


@cache
def _compiled() -> tuple[Any, Any]:
    # Static shapes first: a training has one, and its kernels are then the quickest.
    return torch.compile(_read), torch.compile(_write)


def fused_middle(sign: int | None) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """What `gram` does with a block between its products."""

    def middle(
        q: Tensor,
        row: Tensor | None,
        least: Tensor | None,
        own: Tensor | None,
        scale: Tensor,
        first: int,
        wanted: bool,
        narrow: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        read, write = _compiled()
        # A tensor, for a number would be compiled in, once for every block.
        diagonal = torch.arange(first, first + q.shape[0], device=q.device)
        total, losses = read(q, row, own, scale, diagonal, sign)
        if not wanted:
            return losses, losses, losses, None
        G, row_sum = write(q, row, least, own, scale, diagonal, total, sign, narrow)
        own_grad = None if own is None else torch.expm1(-losses)
        return losses, G, row_sum, own_grad

    return middle
