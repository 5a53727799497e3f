"""Gradient norms: every tensor's own and the global one, in one pass over the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class Norms:
    """Norms of some gradients, still where they were computed."""

    each: Tensor
    """One per gradient, in the order given."""
    total: Tensor
    """The norm of all of them as one vector, 0-dimensional."""


def measure(gradients: Sequence[Tensor], *, each: Sequence[Tensor] | None = None) -> Norms:
    """The norms of gradients; `each` when somebody has the single norms already.

    For ordinary float32 gradients these are the operations of `clip_grad_norm_`, so that clipping by
    `max_norm=` gives the same bits. Half-precision gradients are summed in float32: their own norm
    would overflow or round away.
    """
    norms = list(each) if each is not None else _single_norms(gradients)
    device = norms[0].device
    if any(norm.device != device or norm.dtype != norms[0].dtype for norm in norms[1:]):
        norms = [norm.to(device=device, dtype=torch.float32) for norm in norms]
    stacked = torch.stack(norms)
    return Norms(stacked, torch.linalg.vector_norm(stacked, 2.0))


def _single_norms(gradients: Sequence[Tensor]) -> list[Tensor]:
    if all(gradient.layout is torch.strided for gradient in gradients):
        return _dense_norms(gradients)
    return [_dense_norms([_values(gradient)])[0] for gradient in gradients]


def _dense_norms(gradients: Sequence[Tensor]) -> list[Tensor]:
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, gradient in enumerate(gradients):
        by_kind.setdefault((gradient.device, gradient.dtype), []).append(position)
    if len(by_kind) == 1:
        return _foreach_norm(gradients)
    norms: list[Tensor] = [gradients[0]] * len(gradients)
    for positions in by_kind.values():
        for position, norm in zip(
            positions, _foreach_norm([gradients[at] for at in positions]), strict=True
        ):
            norms[position] = norm
    return norms


def _foreach_norm(gradients: Sequence[Tensor]) -> list[Tensor]:
    same_kind = list(gradients)
    if same_kind[0].dtype in _HALF:
        return list(torch._foreach_norm(same_kind, 2.0, dtype=torch.float32))
    return list(torch._foreach_norm(same_kind, 2.0))


def zero_shares(gradients: Sequence[Tensor]) -> Tensor:
    """The share of elements that are exactly zero, per gradient (of the rows a sparse one has)."""
    stored = [_values(gradient) for gradient in gradients]
    return torch.stack([1.0 - torch.count_nonzero(v) / max(v.numel(), 1) for v in stored])


def count_nonfinite(tensor: Tensor) -> tuple[int, int]:
    """(NaN elements, infinite elements). Waits for the device: only for steps known to be bad."""
    values = _values(tensor)
    if not (values.is_floating_point() or values.is_complex()):
        return 0, 0
    return int(torch.isnan(values).sum()), int(torch.isinf(values).sum())


def _values(tensor: Tensor) -> Tensor:
    return tensor.coalesce().values() if tensor.is_sparse else tensor
