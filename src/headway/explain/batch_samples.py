"""Which samples of the batch the elements of a tensor belong to, and each sample's share of a
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.explain.tensor_memory import batch_tensors
from headway.explain.traced_call import TracedCall
from headway.torch_adapters.tensor_values import as_real, plain_tensor

FAR_OUT = 100.0
"""A sample is an outlier if its largest element exceeds those of all others by this factor."""


class SampleAxis(NamedTuple):
    """The sample dimension, and the number of indices per sample."""

    dim: int
    each: int = 1


class BatchSamples:
    """Layout of the samples of one batch in the tensors computed from it."""

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

    def axis(self, shape: Sequence[int]) -> SampleAxis | None:
        """The sample axis of a tensor of this shape; None if unknown."""
        if self.size is None or not shape:
            return None
        first = shape[0]
        if first == self.size:
            return SampleAxis(0)
        if len(shape) > 1 and shape[1] == self.size:
            if self._sequence_first or first in self._lengths or len(shape) > 2:
                return SampleAxis(1)
            return None
        each, rest = divmod(first, self.size)
        if rest or each < 2 or self._sequence_first:
            return None
        # The number of features may match by chance: require a known length or more dimensions.
        return SampleAxis(0, each) if each in self._lengths or len(shape) > 2 else None

    def per_sample(self, values: Tensor, axis: SampleAxis, how: str) -> Tensor:
        """One value per sample: the `amax`, `sum` or `any` of its elements."""
        assert self.size is not None
        by_sample = values.movedim(axis.dim, 0).reshape(self.size, -1)
        found: Tensor = getattr(by_sample, how)(dim=1)
        return found

    def with_bad(self, tensor: Tensor) -> tuple[int, ...]:
        """The samples with NaN or, without NaN, with infinities; empty if all samples have them."""
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
        largest = self.per_sample(as_real(tensor).abs(), axis, "amax").float()
        first, second = torch.topk(largest, 2).values.tolist()
        return (int(largest.argmax()),) if first > FAR_OUT * second else ()

    def _some(self, marked: Tensor) -> tuple[int, ...]:
        rows = tuple(int(row) for row in marked.nonzero().flatten().tolist())
        return rows if len(rows) < marked.numel() or marked.numel() == 1 else ()


def real_like(tensor: Tensor) -> Tensor:
    """Real values of the same shape, finite where the tensor is."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).sum(dim=-1)
    return as_real(tensor)


def _batch_size(shapes: Sequence[tuple[int, ...]]) -> int | None:
    """The most common first or second dimension of the batch's tensors."""
    lengths = {length for shape in shapes for length in shape[:2]}
    return max(
        lengths,
        key=lambda length: (
            sum(length in shape[:2] for shape in shapes),
            sum(shape[0] == length for shape in shapes),
        ),
        default=None,
    )


# The share of each sample in a gradient, recorded while backward runs.


@dataclass(frozen=True, slots=True)
class GradientShare:
    """The shares of the samples of one batch in one gradient."""

    order: int
    batch: int
    sizes: tuple[float, ...]


class GradientShares:
    """Collected from the ops of backward as they run."""

    def __init__(
        self, samples: Sequence[BatchSamples], weight_shapes: frozenset[tuple[int, ...]]
    ) -> None:
        self.of_activations: list[GradientShare] = []
        """Nearest to the loss first."""
        self.of_weights: dict[int, GradientShare] = {}
        """By the op that computed the gradient."""
        self._samples = samples
        self._weight_shapes = weight_shapes

    def look(self, call: TracedCall, args: tuple[Any, ...], outputs: Sequence[Tensor]) -> None:
        if call.batch >= len(self._samples) or not outputs:
            return
        samples = self._samples[call.batch]
        made = self._rows_of_product(call, args)
        if made is not None and (share := self._share(call, samples, made)):
            self.of_weights[call.order] = share
        first = outputs[0]
        if not first.is_floating_point() or tuple(first.shape) in self._weight_shapes:
            return
        if share := self._share(call, samples, first):
            self.of_activations.append(share)

    def _rows_of_product(self, call: TracedCall, args: tuple[Any, ...]) -> Tensor | None:
        """Contribution of each row to a weight's gradient: a product of two vectors."""
        given = [plain_tensor(item) for item in args[:2] if isinstance(item, Tensor)]
        left, right = given if len(given) == 2 else (None, None)
        if left is None or right is None:
            return None
        if call.facts.aten == "mm":
            return _norms(left.t()) * _norms(right)
        if call.facts.aten == "convolution_backward":
            return _norms(left) * _norms(right)
        return None

    def _share(self, call: TracedCall, samples: BatchSamples, rows: Tensor) -> GradientShare | None:
        axis = samples.axis(rows.shape)
        if axis is None:
            return None
        squares = samples.per_sample(rows.float().square(), axis, "sum")
        return GradientShare(call.order, call.batch, tuple(squares.sqrt().tolist()))


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows.flatten(1).float(), dim=1)
    return norms
