"""Splits one call of a model into micro-batches, joins their results, and verifies them.

The proof runs a few rows once together and once in pieces. It finds whether a sample's output
depends on other samples of the batch, and how a loss that the model computes is reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from headway.torch_adapters.compat import (
    BatchNorm,
    map_nested,
    module_buffers,
    nested_leaves,
    tensor_version,
)
from headway.torch_adapters.device_failure.device_memory import (
    is_out_of_memory,
    release_cached_memory,
)
from headway.torch_adapters.rng import RngState

PROOF_ROWS = (5, 3, 2)
"""Rows that the proof runs, fewer if they do not fit. The halves of an odd number are unequal, so
that their means show how they are weighed."""
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Largest relative difference between the rows run together and in pieces; TF32 has ten bits."""
HALF_TOLERANCE = 3e-2
LOSS_SHARE = 0.1
"""The same for a loss, as a share of it: reductions may differ by little."""
CLEARLY, ROUNDING = 10.0, 1e-6
"""Another reduction must be wrong by this factor times the error of the best, and by this much."""
IGNORED = -100
"""The label that `cross_entropy` leaves out by default."""


class CannotSplit(Exception):
    """The batch cannot be run in micro-batches; the message says why."""


@dataclass(slots=True)
class ModelCall:
    """One call of a model, with its arguments."""

    model: nn.Module
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    rows: int = field(init=False)
    """Length of the first dimension of the first tensor; 0: there is none."""

    def __post_init__(self) -> None:
        self.rows = next((t.shape[0] for t in self.tensors() if t.ndim), 0)

    def __call__(self) -> Any:
        return self.run(*self.args, **self.kwargs)

    def tensors(self) -> list[Tensor]:
        return [item for item in nested_leaves((self.args, dict(self.kwargs))) if _is_tensor(item)]

    @property
    def elements(self) -> int:
        """Number of input elements, which stands for the memory that the call needs."""
        return sum(tensor.numel() for tensor in self.tensors())

    def part(self, start: int, stop: int) -> ModelCall:
        """The same call for some rows of the batch."""

        def cut(item: Any) -> Any:
            split = _is_tensor(item) and item.ndim and item.shape[0] == self.rows
            return item[start:stop] if split else item

        args, kwargs = map_nested(cut, (self.args, dict(self.kwargs)))
        return ModelCall(self.model, self.run, args, kwargs)

    def parts(self, count: int) -> list[ModelCall]:
        """The batch in `count` parts of nearly equal size."""
        edges = [round(at * self.rows / count) for at in range(count + 1)]
        return [self.part(*edge) for edge in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Reduction:
    """How the scalars of the parts become that of the batch: a sum with weights."""

    name: str
    first_label: int | None = None
    """The mean is over labels from this position on; None: over rows."""

    def weights(self, parts: Sequence[ModelCall]) -> list[float]:
        """The weight of each part; all 0 where this reduction does not apply."""
        if self.name == "sum":
            return [1.0 for _ in parts]
        counts = [float(part.rows) for part in parts]
        if self.first_label is not None:
            counts = _count_labels(parts, self.first_label)
        total = sum(counts)
        return [count / total if total else 0.0 for count in counts]


def _count_labels(parts: Sequence[ModelCall], first: int) -> list[float]:
    """Number of labels that count in each part: of the inputs that have ignored ones."""
    columns = [
        column
        for column in zip(*(part.tensors() for part in parts), strict=True)
        if column[0].dtype is torch.int64 and any(bool((item == IGNORED).any()) for item in column)
    ]
    return [
        sum(float(_labels(column[at], first).ne(IGNORED).sum()) for column in columns)
        for at in range(len(parts))
    ]


def _labels(tensor: Tensor, first: int) -> Tensor:
    return tensor[:, first:] if tensor.ndim > 1 else tensor


MEAN = Reduction("mean")
REDUCTIONS = (
    MEAN,
    Reduction("sum"),
    Reduction("mean over labels", 0),
    Reduction("mean over the labels after the first", 1),
)


def join(results: Sequence[Any], rows: Sequence[int], weights: Sequence[float] | None) -> Any:
    """The result for the whole batch. Raises CannotSplit where a part of it cannot be joined."""
    leaves = [nested_leaves(result) for result in results]
    if len({len(found) for found in leaves}) > 1:
        raise CannotSplit("its pieces return results of different structure")
    joined = iter([join_leaf(column, rows, weights) for column in zip(*leaves, strict=True)])
    return map_nested(lambda item: next(joined), results[0])


def join_leaf(items: Sequence[Any], rows: Sequence[int], weights: Sequence[float] | None) -> Any:
    """One part of the result: rows are concatenated, scalars added with their weights."""
    first = items[0]
    if not _is_tensor(first):
        return first if _is_plain(first) else None
    if all(item.ndim and item.shape[0] == count for item, count in zip(items, rows, strict=True)):
        return torch.cat(list(items))
    if first.numel() != 1:
        raise CannotSplit(f"it returns a tensor of shape {tuple(first.shape)} without a batch")
    if weights is None:
        raise CannotSplit("it returns a scalar, and how that is reduced is not known")
    return sum(item * weight for item, weight in zip(items, weights, strict=True))


def refuse_batch_statistics(model: nn.Module) -> None:
    """Raise CannotSplit if a layer computes statistics over the whole batch."""
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
            kind = type(module).__name__
            raise CannotSplit(f"`{name or kind}` ({kind}) uses statistics of the whole batch")


@contextmanager
def buffers_unchanged(model: nn.Module) -> Iterator[None]:
    """Raise CannotSplit if the forward pass writes to a buffer, and restore it."""
    buffers = [
        (f"{path}.{name}".lstrip("."), buffer, buffer.detach().clone(), tensor_version(buffer))
        for path, module in model.named_modules()
        for name, buffer in module_buffers(module).items()
        if buffer is not None
    ]
    changed: list[str] = []
    try:
        yield
    finally:
        for name, buffer, value, version in buffers:
            if tensor_version(buffer) != version:
                changed.append(name)
                with torch.no_grad():
                    buffer.copy_(value)
    if changed:
        raise CannotSplit(f"its forward pass changes the buffer `{changed[0]}`")


@torch.no_grad()
def verify_split(call: ModelCall) -> Reduction | None:
    """Verify on a few rows that micro-batches give the same result as the rows together.

    Returns how scalars are reduced; None: there are none. Raises CannotSplit.
    """
    refuse_batch_statistics(call.model)
    if call.rows < 2:
        raise CannotSplit(f"the batch has {call.rows} row" + ("s" if call.rows != 1 else ""))
    before = RngState()
    for rows in sorted({min(rows, call.rows) for rows in PROOF_ROWS}, reverse=True):
        try:
            return _prove_with(call, rows)
        except CannotSplit:
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                text = f"{type(error).__name__}: {error}"
                raise CannotSplit(f"it fails on {rows} rows ({text})") from None
        finally:
            before.restore()
        release_cached_memory()
    raise CannotSplit("not even two rows fit")


def _prove_with(call: ModelCall, rows: int) -> Reduction | None:
    whole, parts = call.part(0, rows), [call.part(0, rows // 2), call.part(rows // 2, rows)]
    with buffers_unchanged(call.model):
        whole()
    with _evaluation(call.model):
        together, results = whole(), [part() for part in parts]
    return _compare(call, together, results, parts)


def _compare(
    call: ModelCall, together: Any, results: Sequence[Any], parts: Sequence[ModelCall]
) -> Reduction | None:
    counts = [part.rows for part in parts]
    leaves = nested_leaves(together)
    if not any(_is_tensor(leaf) and leaf.numel() == 1 for leaf in leaves):
        if all(map(_alike, leaves, nested_leaves(join(results, counts, None)))):
            return None
        raise CannotSplit("the output of a sample depends on the other samples of the batch")
    errors: dict[Reduction, float] = {}
    for reduction in REDUCTIONS:
        weights = reduction.weights(parts)
        if any(weights):
            joined = nested_leaves(join(results, counts, weights))
            if all(map(_alike, leaves, joined)):
                errors[reduction] = max(map(_loss_error, leaves, joined))
    if not errors:
        raise CannotSplit("its loss over a batch is neither the mean nor the sum over its parts")
    best = min(errors, key=lambda reduction: errors[reduction])
    halves = call.parts(2)
    # The losses of an untrained model are nearly equal: only the exact reduction gives the digits.
    rivals = [
        reduction
        for reduction, error in errors.items()
        if error <= max(CLEARLY * errors[best], ROUNDING)
        and reduction.weights(halves) != best.weights(halves)
    ]
    if rivals:
        raise CannotSplit("its first rows do not show how its loss is reduced")
    return best


def _loss_error(one: Any, other: Any) -> float:
    if not _is_tensor(one) or one.numel() != 1:
        return 0.0
    return abs(float(one) - float(other)) / max(abs(float(one)), 1e-6)


def _alike(one: Any, other: Any) -> bool:
    if not _is_tensor(one) or not _is_tensor(other):
        return True
    if one.shape != other.shape:
        return one.numel() == other.numel() == 1 and _alike(one.reshape(()), other.reshape(()))
    if not one.is_floating_point():
        return True  # indices of a maximum may differ where two values are equal
    if not one.numel():
        return True
    limit = TOLERANCES.get(one.dtype, HALF_TOLERANCE) * (LOSS_SHARE if one.ndim == 0 else 1.0)
    difference = (one.double() - other.double()).abs().max()
    return bool(difference <= limit * one.double().abs().max().clamp(min=1e-6))


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Without dropout: two passes over the same rows give the same result."""
    training = [module for module in model.modules() if module.training]
    with ExitStack() as stack:
        for module in training:
            stack.callback(setattr, module, "training", True)
            module.training = False
        yield


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


def _is_plain(item: Any) -> bool:
    return item is None or isinstance(item, (bool, int, float, str))
