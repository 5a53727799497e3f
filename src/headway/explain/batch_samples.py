"""The samples of a batch: which of them the elements of a tensor belong to, each one's share of a
gradient, and what the failing ones have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from headway.explain.explanation import Origin, Spike
from headway.explain.failing_step import FailingStep
from headway.explain.tensor_memory import batch_tensors
from headway.explain.traced_call import TracedCall
from headway.torch_adapters.nested_state import find_tensors
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


# What the failing samples of a batch have in common, and the other samples do not; and how a whole
# batch differs from the one before.

Carrier = TypeVar("Carrier", Origin, Spike)
FAR = 10.0
"""Values are unusual if they are this many times larger or smaller than those of the others …"""
APART = 3.0
"""… and this many times the largest of them."""
MOST_ALIKE = 0.25
"""Share of the other samples that may be as unusual: they did not fail, by chance."""


def find_common(failing_step: FailingStep, batch: int, rows: Sequence[int]) -> str:
    """`inputs about 3,000 times the usual`; empty if nothing is common to these rows only."""
    if not rows or not 0 <= batch < len(failing_step.batches):
        return ""
    found = [trait for trait in _traits(failing_step.batches[batch], rows) if trait]
    return " and ".join(dict.fromkeys(found[:2]))


def blame_batch(failing_step: FailingStep, healthy: Sequence[Any], spike: Spike) -> Spike:
    """The spike of a whole batch, if nearly all of its rows differ from those of a healthy batch.

    A few rows may still have the largest gradients; naming them alone would mislead.
    """
    for at, batch in enumerate(failing_step.batches):
        common = next(filter(None, _traits_of_all(batch, healthy[-1] if healthy else None)), "")
        if common:
            return replace(spike, rows=(), batch=at, common=common)
    return spike


def _traits_of_all(batch: Any, other: Any) -> Iterator[str]:
    """How the numbers of a batch differ from those of another batch of the run."""
    pairs = zip(find_tensors(batch), find_tensors(other), strict=False)
    for at, ((path, column), (same, before)) in enumerate(pairs):
        comparable = path == same and column.shape[1:] == before.shape[1:]
        if not comparable or not all(_has_finite_rows(one) for one in (column, before)):
            continue
        sizes, usual = _row_sizes(column), _row_sizes(before)
        few = float(sizes.quantile(MOST_ALIKE))  # nearly all rows are larger than this
        if few > max(FAR * float(usual.median()), APART * float(usual.max())) > 0:
            ratio = float(sizes.square().mean().sqrt() / usual.square().mean().sqrt())
            yield f"{_name(at)} about {_round(ratio)} times those of the batch before"


def _has_finite_rows(tensor: Tensor) -> bool:
    usable = tensor.is_floating_point() and _has_rows(tensor, (0,))
    return usable and bool(torch.isfinite(tensor).all())


def _row_sizes(tensor: Tensor) -> Tensor:
    """Root mean square of each row."""
    return tensor.detach().reshape(len(tensor), -1).double().square().mean(dim=1).sqrt()


def _name(at: int) -> str:
    return "inputs" if at == 0 else "targets" if at == 1 else f"values in batch[{at}]"


def add_common(failing_step: FailingStep, carrier: Carrier) -> Carrier:
    """The origin or the spike, with what its samples have in common."""
    if not carrier.rows:
        return carrier
    common = find_common(failing_step, carrier.batch, carrier.rows)
    return replace(carrier, common=common)


def _traits(batch: Any, rows: Sequence[int]) -> Iterator[str]:
    columns = [tensor.detach() for _, tensor in find_tensors(batch) if _has_rows(tensor, rows)]
    for at, column in enumerate(columns):
        others = sorted(set(range(len(column))) - set(rows))
        if len(others) < 2 or len(others) < len(rows):
            continue
        name = _name(at)
        flat = column.reshape(len(column), -1)
        if column.is_floating_point():
            yield _of_numbers(flat.double(), rows, others, name)
        else:
            yield _of_labels(flat, rows, others, name)


def _has_rows(tensor: Tensor, rows: Sequence[int]) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_complex()
    return plain and tensor.ndim > 0 and tensor.numel() > 0 and len(tensor) > max(rows)


def _of_numbers(flat: Tensor, rows: Sequence[int], others: Sequence[int], name: str) -> str:
    if not bool(torch.isfinite(flat).all()):
        return ""  # the headline already says that the data are not finite
    sizes = flat.square().mean(dim=1).sqrt()
    theirs, usual = sizes[list(rows)], float(sizes[list(others)].median())
    if usual == 0:
        return ""
    wide = flat.shape[1] > 1  # a single 0 or any single number is nothing special
    if wide and bool((theirs == 0).all()) and not bool((sizes[list(others)] == 0).any()):
        return f"{name} that are all 0"
    alike = [row for row in others if float(sizes[row]) > FAR * usual]
    rest = sorted(set(others) - set(alike))
    far = [*rows, *(alike if len(alike) <= MOST_ALIKE * len(others) else ())]
    largest = float(sizes[rest if len(far) > len(rows) else list(others)].max())
    if float(sizes[far].min()) > max(FAR * usual, APART * largest):
        pooled = [float(sizes[list(some)].square().mean().sqrt()) for some in (far, rest)]
        more = f", like {len(alike)} more of the batch" if alike else ""
        return f"{name} about {_round(pooled[0] / pooled[1])} times the usual{more}"
    constant = (flat == flat[:, :1]).all(dim=1)
    alone = bool(constant[list(rows)].all()) and not bool(constant[list(others)].any())
    return f"{name} that are constant" if alone and wide else ""


def _of_labels(flat: Tensor, rows: Sequence[int], others: Sequence[int], name: str) -> str:
    if flat.shape[1] != 1:
        return ""
    values = set(flat[list(rows), 0].tolist())
    if len(rows) < 2 or len(values) != 1 or values & set(flat[list(others), 0].tolist()):
        return ""
    return f"the label {next(iter(values))}"


def _round(factor: float) -> str:
    """One digit: samples differ, and the scale is what matters."""
    return f"{float(f'{factor:.0e}'):,.0f}" if factor < 1e6 else f"{factor:.0e}"
