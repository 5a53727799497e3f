"""Which samples of the batch the elements of a tensor belong to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.replay.finiteness import real
from headway.replay.operands import batch_tensors

FAR_OUT = 100.0
"""How many times the largest element of any other sample one must hold to stand out."""


class Axis(NamedTuple):
    """The dimension that counts the samples, and how many places each takes on it."""

    dim: int
    each: int = 1


class Samples:
    """How the samples of one batch lie in the tensors made of it."""

    def __init__(self, batch: Any) -> None:
        shapes = [tuple(tensor.shape) for _, tensor in batch_tensors(batch) if tensor.ndim]
        self.size = _batch_size(shapes)
        self._sequence_first = any(
            self.size in shape[1:2] and shape[0] != self.size for shape in shapes
        )
        self._lengths = {
            length + extra  # with a class token, or shifted by one
            for shape in shapes
            for length in (*shape[1:], *accumulate(shape[1:], mul))
            for extra in (-1, 0, 1)
            if length + extra > 1
        }

    def axis(self, shape: Sequence[int]) -> Axis | None:
        """Where the samples are in a tensor of this shape; None where nobody can tell."""
        if self.size is None or not shape:
            return None
        first = shape[0]
        if first == self.size:
            return Axis(0)
        if len(shape) > 1 and shape[1] == self.size:
            if self._sequence_first or first in self._lengths or len(shape) > 2:
                return Axis(1)
            return None
        each, rest = divmod(first, self.size)
        if rest or each < 2 or self._sequence_first:
            return None
        # Features may be as many by accident: a known length or heads next to them say no.
        return Axis(0, each) if each in self._lengths or len(shape) > 2 else None

    def per_sample(self, values: Tensor, axis: Axis, how: str) -> Tensor:
        """One number per sample: the `amax`, `sum` or `any` of its elements."""
        assert self.size is not None
        by_sample = values.movedim(axis.dim, 0).reshape(self.size, -1)
        found: Tensor = getattr(by_sample, how)(dim=1)
        return found

    def with_bad(self, tensor: Tensor) -> tuple[int, ...]:
        """The samples with NaN or, where there is none, with infinities; nobody if all have them,
        as that tells nothing."""
        axis = self.axis(tensor.shape)
        if axis is None or self.size is None:
            return ()
        numbers = real_like(tensor)
        bad = numbers.isnan()
        return self._some(self.per_sample(bad if bad.any() else numbers.isinf(), axis, "any"))

    def standing_out(self, tensor: Tensor) -> tuple[int, ...]:
        """The one sample whose elements are far larger than those of all others."""
        axis = self.axis(tensor.shape)
        if axis is None or self.size is None or self.size < 2 or not tensor.is_floating_point():
            return ()
        largest = self.per_sample(real(tensor).abs(), axis, "amax").float()
        first, second = torch.topk(largest, 2).values.tolist()
        return (int(largest.argmax()),) if first > FAR_OUT * second else ()

    def _some(self, marked: Tensor) -> tuple[int, ...]:
        rows = tuple(int(row) for row in marked.nonzero().flatten().tolist())
        return rows if len(rows) < marked.numel() or marked.numel() == 1 else ()


def real_like(tensor: Tensor) -> Tensor:
    """Real numbers of the same shape that are finite where those of the tensor are."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).sum(dim=-1)
    return real(tensor)


def _batch_size(shapes: Sequence[tuple[int, ...]]) -> int | None:
    """The length that most tensors of the batch share as their first or second."""
    lengths = {length for shape in shapes for length in shape[:2]}
    return max(
        lengths,
        key=lambda length: (
            sum(length in shape[:2] for shape in shapes),
            sum(shape[0] == length for shape in shapes),
        ),
        default=None,
    )
