"""The rows of a batch, and the remedy that replaces the samples at fault by healthy ones."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headway.explain.batch_samples import find_common
from headway.explain.explanation import Origin, Spike
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.torch_adapters.nested_state import find_tensors

# Replacing values in nested containers. A batch or a module's output may be a dict, a named tuple,
# a dataclass or a library's mapping; the copy keeps its class. A container without changes is
# returned itself.

Visit = Callable[[Any], Any]


def rebuild(value: Any, visit: Visit) -> Any:
    """`visit` returns a replacement or the value itself; then its items are visited."""
    found = visit(value)
    if found is not value:
        return found
    if isinstance(value, Mapping):
        return _rebuild_mapping(value, visit)
    if isinstance(value, (list, tuple)):
        items = [rebuild(item, visit) for item in value]
        return sequence_like(value, items) if _differ(items, value) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _rebuild_dataclass(value, visit)
    return value


def sequence_like(value: Any, items: list[Any]) -> Any:
    """These items in a list or tuple of the same class."""
    if hasattr(value, "_fields"):
        return type(value)(*items)
    return items if type(value) is list else type(value)(items)


def _rebuild_mapping(value: Mapping[Any, Any], visit: Visit) -> Any:
    items = {key: rebuild(item, visit) for key, item in value.items()}
    if not _differ(items.values(), value.values()):
        return value
    try:
        changed: Any = copy.copy(value)
        for key, item in items.items():
            if changed[key] is not item:
                changed[key] = item
    except TypeError:  # it cannot be written to
        return items
    return changed


def _rebuild_dataclass(value: Any, visit: Visit) -> Any:
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    theirs = [getattr(value, name) for name in names]
    items = [rebuild(item, visit) for item in theirs]
    if not _differ(items, theirs):
        return value
    changed = copy.copy(value)
    for name, item in zip(names, items, strict=True):
        object.__setattr__(changed, name, item)  # frozen ones as well
    return changed


def _differ(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return any(one is not other for one, other in zip(some, others, strict=True))


# The samples of a nested batch: their number, which are bad, and replacing some by others.

# Where a batch is made of columns, a sample is a row of every tensor whose first dimension is the
# batch size; where it is a list of samples, it is an item.

_CHANNELS = (1, 3)
Array: TypeAlias = "np.ndarray[Any, Any]"


def batch_size(batch: Any) -> int | None:
    """Number of samples in a batch; None if unknown."""
    found = list(_sizes(batch, outermost=True))
    # A list may be anything; the first dimension of a tensor is nearly always the batch size.
    columns = [size for size, of_tensor in found if of_tensor] or [size for size, _ in found]
    return Counter(columns).most_common(1)[0][0] if columns else None


def with_rows_from(batch: Any, source: Sequence[int]) -> Any:
    """The batch whose row i is row `source[i]` of `batch`."""
    size, index = len(source), torch.tensor(source)

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            return _rows(value, index) if _first_dimension(value) == size else value
        if isinstance(value, np.ndarray):
            return value[list(source)] if value.ndim and len(value) == size else value
        if _is_list_of_samples(value, outermost=value is batch) and len(value) == size:
            return sequence_like(value, [value[row] for row in source])
        return value

    return rebuild(batch, visit)


def bad_rows(batch: Any) -> tuple[int, ...]:
    """The samples that contain NaN or Inf."""
    size = batch_size(batch)
    if size is None:
        return ()
    if _is_list_of_samples(batch, outermost=True):
        return tuple(row for row, sample in enumerate(batch) if _holds_bad(sample))
    found: set[int] = set()
    for _, tensor in find_tensors(batch):
        if _first_dimension(tensor) == size and tensor.is_floating_point():
            bad = ~torch.isfinite(tensor).reshape(size, -1).all(dim=1)
            found.update(bad.nonzero().flatten().tolist())
    return tuple(sorted(found))


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    chosen = tensor.detach().index_select(0, index.to(tensor.device))
    return chosen.requires_grad_(tensor.requires_grad)


def _first_dimension(tensor: Tensor | Array) -> int | None:
    if isinstance(tensor, np.ndarray):
        return len(tensor) if tensor.ndim else None
    plain = tensor.layout is torch.strided and tensor.ndim > 0 and not tensor.is_nested
    return int(tensor.shape[0]) if plain else None


def _holds_bad(sample: Any) -> bool:
    return any(
        tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
        for _, tensor in find_tensors(sample)
    )


def _sizes(value: Any, *, outermost: bool = False) -> Iterator[tuple[int, bool]]:
    """Candidates for the batch size, and whether each is that of a tensor."""
    if isinstance(value, Tensor):
        size = _first_dimension(value)
        if size is not None:
            yield size, True
    elif isinstance(value, np.ndarray):
        if value.ndim:
            yield len(value), True
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _sizes(item)
    elif _is_list_of_samples(value, outermost=outermost):
        yield len(value), False
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _sizes(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _sizes(getattr(value, field.name, None))


def _is_list_of_samples(value: Any, *, outermost: bool) -> bool:
    """Whether the items are samples (of one type) and not columns."""
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields") or not value:
        return False
    if len({type(item) for item in value}) != 1:
        return False
    first = value[0]
    if isinstance(first, (Tensor, np.ndarray)):
        return _are_samples(value, outermost=outermost)
    if isinstance(first, (list, tuple)) and not hasattr(first, "_fields"):
        # `zip(*samples)` makes a tuple of columns, each of one kind; `list(samples)` makes none.
        zipped = isinstance(value, tuple) or isinstance(first, list)
        return not (zipped and all(_of_one_kind(item) for item in value))
    return True


def _are_samples(tensors: Sequence[Tensor | Array], *, outermost: bool) -> bool:
    if not _of_one_kind(tensors):
        return False
    sizes = {_first_dimension(tensor) for tensor in tensors}
    # Images of three channels look like columns of three samples, and come beside their targets.
    images = not outermost and tensors[0].ndim == 3 and sizes <= set(_CHANNELS)
    return len(sizes) > 1 or sizes == {None} or images


def _of_one_kind(items: Sequence[Any]) -> bool:
    kinds = {
        (type(item), item.ndim, item.dtype)
        if isinstance(item, (Tensor, np.ndarray))
        else (type(item),)
        for item in items
    }
    return len(kinds) == 1


# The remedy: healthy samples of the same batch replace the failing ones, so shapes do not change.
# If all samples of a batch fail, another batch of the same step replaces it.

RowsByBatch = Mapping[int, Sequence[int]]
"""Rows by batch of the step."""


class DropSamples(StepRemedy):
    key = "drop-samples"
    safe = True

    def __init__(self, failing_step: FailingStep, rows: RowsByBatch) -> None:
        sizes = [batch_size(batch) or 1 for batch in failing_step.batches]
        self.rows = {
            at: tuple(sorted({row for row in those if 0 <= row < sizes[at]}))
            for at, those in sorted(rows.items())
            if 0 <= at < len(sizes)
        }
        self._names = {at: _names(failing_step, at, those) for at, those in self.rows.items()}
        self._common = {at: find_common(failing_step, at, those) for at, those in self.rows.items()}
        self._several = len(sizes) > 1
        self._sources = [_source(size, self.rows.get(at, ())) for at, size in enumerate(sizes)]
        if not any(self._sources):
            self.why_not = "all samples of the step are affected, so none can replace them"

    @classmethod
    def fitting(cls, found: Origin | Spike, failing_step: FailingStep) -> DropSamples | None:
        """For the rows that are known; for bad input data, the rows that contain NaN or Inf."""
        rows: RowsByBatch
        if found.rows:
            rows = {found.batch: found.rows}
        elif isinstance(found, Origin) and found.kind == "poisoned-batch":
            rows = {at: bad_rows(batch) for at, batch in enumerate(failing_step.batches)}
        else:
            return None
        remedy = cls(failing_step, rows)
        # If all samples of the step fail, naming them does not help.
        return remedy if any(remedy.rows.values()) and not remedy.why_not else None

    @property
    def text(self) -> str:
        return "Fix or remove " + "; ".join(
            self._one(at, rows) for at, rows in self.rows.items() if rows
        )

    def applied(self, failing_step: FailingStep) -> AbstractContextManager[None]:
        return nullcontext()

    def batches(self, failing_step: FailingStep) -> Sequence[Any]:
        repaired = [
            with_rows_from(batch, source) if source and self.rows.get(at) else batch
            for at, (batch, source) in enumerate(
                zip(failing_step.batches, self._sources, strict=True)
            )
        ]
        healthy = [batch for batch, source in zip(repaired, self._sources, strict=True) if source]
        return [
            batch if source or not healthy else healthy[at % len(healthy)]
            for at, (batch, source) in enumerate(zip(repaired, self._sources, strict=True))
        ]

    def _one(self, at: int, rows: Sequence[int]) -> str:
        many, listed = "s" if len(rows) > 1 else "", ", ".join(map(str, rows))
        where = f" of batch {at} of the step" if self._several else ""
        names = self._names[at]
        common = f" with {self._common[at]}" if self._common[at] else ""
        if names:
            return f"data-set sample{many} {', '.join(map(str, names))}{common}"
        return f"sample{many} {listed}{where}{common}"


def _source(size: int, dropped: Sequence[int]) -> list[int]:
    """For each row, the row that replaces it; empty if no healthy row is left."""
    healthy = sorted(set(range(size)) - set(dropped))
    if not healthy:
        return []
    source = list(range(size))
    for at, row in enumerate(dropped):
        source[row] = healthy[at % len(healthy)]
    return source


def _names(failing_step: FailingStep, at: int, rows: Sequence[int]) -> Sequence[Any]:
    return (
        failing_step.sample_names(at, rows)
        if failing_step.sample_names is not None and rows
        else ()
    )


# The bisection: finds the failing samples by leaving some out. A set whose removal fixes the step
# contains all of them. So the shortest prefix whose removal fixes it ends at the last failing
# sample, and halving finds it; the same is repeated before it until the samples found are enough.

SampleIndex = tuple[int, int]
"""Batch of the step, row in it."""


class Bisection:
    """Iterate over it, run the step with each remedy, and pass the outcome to `learn`.

    search = Bisection(failing_step, most=8)
    for remedy in search:
        search.learn(cured=run(remedy))
    search.found, search.why
    """

    def __init__(self, failing_step: FailingStep, most: int) -> None:
        self._failing_step = failing_step
        self._most = most
        self._order: list[SampleIndex] = [
            (at, row)
            for at, batch in enumerate(failing_step.batches)
            for row in range(batch_size(batch) or 1)
        ]
        self._known: dict[frozenset[SampleIndex], bool] = {}
        self._cured: bool | None = None
        self.passes = 0
        self.found: DropSamples | None = None
        """The smallest set of samples whose removal fixed the step."""
        self.minimal = False
        """Whether all of them must be removed."""
        self.why = ""
        """Why none, or no minimal set, was found."""

    def learn(self, *, cured: bool) -> None:
        """Set the outcome of the last remedy."""
        self._cured = cured

    def __iter__(self) -> Iterator[DropSamples]:
        try:
            yield from self._search()
        except _OutOfPasses:
            self._conclude(f"{self._most} passes are not enough")

    def _search(self) -> Iterator[DropSamples]:
        if len(self._order) < 2:
            self._conclude("the step has only one sample")
            return
        guilty: frozenset[SampleIndex] = frozenset()
        end = len(self._order)
        while end > 0:
            low, high = 0, end
            while high - low > 1:
                middle = (low + high) // 2
                left_out = guilty | frozenset(self._order[:middle])
                yield from self._ask(left_out)
                low, high = (low, middle) if self._known[left_out] else (middle, high)
            guilty |= {self._order[high - 1]}
            end = high - 1
            if len(guilty) == len(self._order):
                break
            yield from self._ask(guilty)
            if self._known[guilty]:
                self.minimal = True
                self._conclude("")
                return
        self._conclude("leaving out samples does not fix the step")

    def _ask(self, left_out: frozenset[SampleIndex]) -> Iterator[DropSamples]:
        if left_out in self._known:
            return
        if self.passes >= self._most:
            raise _OutOfPasses
        self.passes += 1
        self._cured = None
        yield self._remedy(left_out)
        if self._cured is None:
            raise RuntimeError("call learn() after each remedy of a Bisection")
        self._known[left_out] = self._cured

    def _conclude(self, why: str) -> None:
        cures = [left_out for left_out, cured in self._known.items() if cured]
        self.found = self._remedy(min(cures, key=len)) if cures else None
        self.why = why

    def _remedy(self, left_out: frozenset[SampleIndex]) -> DropSamples:
        rows: dict[int, list[int]] = {}
        for at, row in sorted(left_out):
            rows.setdefault(at, []).append(row)
        return DropSamples(self._failing_step, rows)


class _OutOfPasses(Exception):
    """The limit on passes is reached."""
