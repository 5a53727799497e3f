"""Gradient norms: every tensor's own and the global one, in one pass over the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.live.shards import is_dtensor, local_part, local_values

_HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class Norms:
    """Norms of some gradients, still where they were computed."""

    each: Tensor
    """One per gradient, in the order given."""
    total: Tensor
    """The norm of all of them as one vector, 0-dimensional."""


class Plan:
    """What is known of a list of gradients before looking at them: are they all of one kind?

    Looking at layout, device and dtype of hundreds of tensors costs the host more than the norms
    themselves, and the answer is the same at every step.
    """

    def __init__(self) -> None:
        self.key: tuple[int, ...] = ()
        self.uniform = False
        self.cut_up = False
        """Whether some are DTensors, of which this rank holds a part."""

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Look again if these are other parameters than last time."""
        key = tuple(map(id, parameters))
        if key != self.key:
            self.key = key
            self.cut_up = any(map(is_dtensor, gradients))
            gradients = [local_part(gradient) for gradient in gradients]
            self.uniform = all(
                gradient.layout is torch.strided
                and gradient.device == gradients[0].device
                and gradient.dtype == gradients[0].dtype
                for gradient in gradients
            )

    def surprise(self) -> None:
        """They were not what they used to be."""
        self.key, self.uniform = (), False


def measure(
    gradients: list[Tensor], *, uniform: bool = False, each: Sequence[Tensor] | None = None
) -> Norms:
    """The norms of gradients; `each` when somebody has the single norms already.

    For ordinary float32 gradients these are the operations of `clip_grad_norm_`, so that clipping
    by `max_norm=` gives the same bits. Half-precision gradients are summed in float32: their own
    norm would overflow or round away.
    """
    if each is not None:
        norms = list(each)
    elif not gradients:
        norms = [torch.zeros(())]
    elif uniform:
        norms = _foreach_norm(gradients)
    else:
        norms = by_one(_single_norms(gradients))
    stacked = torch.stack(norms)
    return Norms(stacked, torch.linalg.vector_norm(stacked, 2.0))


def by_one(norms: list[Tensor]) -> list[Tensor]:
    """All on one device and of one dtype."""
    device, dtype = norms[0].device, norms[0].dtype
    if all(norm.device == device and norm.dtype == dtype for norm in norms):
        return norms
    return [norm.to(device=device, dtype=torch.float32) for norm in norms]


def _single_norms(gradients: list[Tensor]) -> list[Tensor]:
    values = [_values(gradient) for gradient in gradients]
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, gradient in enumerate(values):
        by_kind.setdefault((gradient.device, gradient.dtype), []).append(position)
    norms: list[Tensor] = list(values)
    for positions in by_kind.values():
        found = _foreach_norm([values[at] for at in positions])
        for position, norm in zip(positions, found, strict=True):
            norms[position] = norm
    return norms


def _foreach_norm(gradients: list[Tensor]) -> list[Tensor]:
    if gradients[0].dtype in _HALF:
        return list(torch._foreach_norm(gradients, 2.0, dtype=torch.float32))
    return list(torch._foreach_norm(gradients, 2.0))


def with_gradients(optimizer: Optimizer) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of an optimizer that have a gradient, and the gradients."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters]
    if any(gradient is None for gradient in gradients):
        parameters = [p for p, g in zip(parameters, gradients, strict=True) if g is not None]
    return parameters, [gradient for gradient in gradients if gradient is not None]


def multiply(gradients: list[Tensor], coefficient: Tensor, *, uniform: bool) -> None:
    """Scale gradients in place, as `clip_grad_norm_` does."""
    if uniform:
        torch._foreach_mul_(gradients, coefficient)
    else:
        for gradient in gradients:
            gradient.mul_(coefficient.to(gradient.device))


def zero_shares(gradients: Sequence[Tensor]) -> Tensor:
    """The share of elements that are exactly zero, per gradient (of the rows a sparse one has)."""
    stored = [
        values.abs() if values.is_complex() else values.float()
        for values in (_values(gradient) for gradient in gradients)
    ]
    nonzero = torch.stack(by_one(list(torch._foreach_norm(stored, 0.0))))
    counts = torch.tensor([max(values.numel(), 1) for values in stored], dtype=torch.float32)
    return 1.0 - nonzero / counts.to(nonzero.device, non_blocking=True)


def count_nonfinite(tensor: Tensor) -> tuple[int, int]:
    """(NaN elements, infinite elements). Waits for the device: only for steps known to be bad."""
    values = _values(tensor)
    if not (values.is_floating_point() or values.is_complex()):
        return 0, 0
    return int(torch.isnan(values).sum()), int(torch.isinf(values).sum())


def count_all_nonfinite(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """(tensors that hold one, elements) that are not finite. Waits for the device."""
    counts = [sum(count_nonfinite(tensor)) for tensor in tensors]
    return sum(1 for count in counts if count), sum(counts)


def _values(tensor: Tensor) -> Tensor:
    tensor = local_values(tensor)
    return tensor.coalesce().values() if tensor.is_sparse else tensor
