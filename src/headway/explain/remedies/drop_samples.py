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

from headway.explain.explanation import Origin, Spike
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.torch_adapters.nested_state import find_tensors

# The samples of a nested batch: how many, which are bad, some replaced by others; containers keep
# their classes.

# The same nested value with other tensors in it: containers keep their classes.

# A batch or a module's output may be a dict, a named tuple, a dataclass or a mapping of some
# library; whoever receives the changed one must not notice. What holds nothing changed is returned
# itself.

Visit = Callable[[Any], Any]


def rebuild(value: Any, visit: Visit) -> Any:
    """`visit` gives what a value is to be replaced by, or the value itself; what it leaves alone is
    looked into."""
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


# The samples of a batch, however it is nested: how many, which are bad, and some put for others.

# Where a batch is made of columns, a sample is a row of every tensor whose first dimension is the
# batch size; where it is a list of samples, it is an item.

_CHANNELS = (1, 3)
Array: TypeAlias = "np.ndarray[Any, Any]"


def batch_size(batch: Any) -> int | None:
    """How many samples a batch holds; None where there is nothing to go by."""
    found = list(_sizes(batch, outermost=True))
    # A list may be anything, a tensor's first dimension hardly ever is something else.
    columns = [size for size, of_tensor in found if of_tensor] or [size for size, _ in found]
    return Counter(columns).most_common(1)[0][0] if columns else None


def with_rows_from(batch: Any, source: Sequence[int]) -> Any:
    """The batch with, at every row, the sample that `source` names."""
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
    """The samples that hold NaN or Inf."""
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
    """What could be the size, and whether it is a tensor's."""
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
    """Items of one kind that are no columns."""
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


# The step without its guilty samples, and the bisection that finds them.

# Healthy samples of the same batch take their rows, so shapes do not change.

# The step without its guilty samples: healthy ones of the same batch take their rows.

# So every shape stays what it was. A batch that is guilty as a whole is replaced by another of the
# same step.

RowsByBatch = Mapping[int, Sequence[int]]
"""Rows by batch of the step."""


class DropSamples(StepRemedy):
    key = "drop-samples"
    safe = True

    def __init__(self, scene: FailingStep, rows: RowsByBatch) -> None:
        sizes = [batch_size(batch) or 1 for batch in scene.batches]
        self.rows = {
            at: tuple(sorted({row for row in those if 0 <= row < sizes[at]}))
            for at, those in sorted(rows.items())
            if 0 <= at < len(sizes)
        }
        self._names = {at: _names(scene, at, those) for at, those in self.rows.items()}
        self._several = len(sizes) > 1
        self._sources = [_source(size, self.rows.get(at, ())) for at, size in enumerate(sizes)]
        if not any(self._sources):
            self.why_not = "every sample of the step is among them: none is left to take the place"

    @classmethod
    def fitting(cls, found: Origin | Spike, scene: FailingStep) -> DropSamples | None:
        """For the rows that were named; for a poisoned batch also those that are seen to be bad."""
        rows: RowsByBatch
        if found.rows:
            rows = {found.batch: found.rows}
        elif isinstance(found, Origin) and found.kind == "poisoned-batch":
            rows = {at: bad_rows(batch) for at, batch in enumerate(scene.batches)}
        else:
            return None
        remedy = cls(scene, rows)
        # Of a step that is guilty as a whole, no sample need be named.
        return remedy if any(remedy.rows.values()) and not remedy.why_not else None

    @property
    def text(self) -> str:
        return "Drop or mend " + "; ".join(
            self._one(at, rows) for at, rows in self.rows.items() if rows
        )

    def applied(self, scene: FailingStep) -> AbstractContextManager[None]:
        return nullcontext()

    def batches(self, scene: FailingStep) -> Sequence[Any]:
        mended = [
            with_rows_from(batch, source) if source and self.rows.get(at) else batch
            for at, (batch, source) in enumerate(zip(scene.batches, self._sources, strict=True))
        ]
        healthy = [batch for batch, source in zip(mended, self._sources, strict=True) if source]
        return [
            batch if source or not healthy else healthy[at % len(healthy)]
            for at, (batch, source) in enumerate(zip(mended, self._sources, strict=True))
        ]

    def _one(self, at: int, rows: Sequence[int]) -> str:
        listed = ", ".join(map(str, rows))
        where = f" of batch {at} of the step" if self._several else ""
        names = self._names[at]
        named = f" (data set: {', '.join(map(str, names))})" if names else ""
        return f"sample{'s' if len(rows) > 1 else ''} {listed}{where}{named}"


def _source(size: int, dropped: Sequence[int]) -> list[int]:
    """For every row, the row whose sample it gets; empty where no row is left."""
    healthy = sorted(set(range(size)) - set(dropped))
    if not healthy:
        return []
    source = list(range(size))
    for at, row in enumerate(dropped):
        source[row] = healthy[at % len(healthy)]
    return source


def _names(scene: FailingStep, at: int, rows: Sequence[int]) -> Sequence[Any]:
    return scene.sample_names(at, rows) if scene.sample_names is not None and rows else ()


# Which samples are guilty, where nobody could name them: by leaving out some and seeing.

# A set of samples that cures when it is left out holds all the guilty ones. So the shortest run of
# first samples that cures ends at the last guilty one, and halving finds it; then the same among
# those before it, until what was found cures by itself.

SampleIndex = tuple[int, int]
"""Batch of the step, row in it."""


class Bisection:
    """Iterate over it, run the step under each remedy, and tell `learn` what came of it.

    search = Bisection(scene, most=8)
    for remedy in search:
        search.learn(cured=run(remedy))
    search.found, search.why
    """

    def __init__(self, scene: FailingStep, most: int) -> None:
        self._scene = scene
        self._most = most
        self._order: list[SampleIndex] = [
            (at, row)
            for at, batch in enumerate(scene.batches)
            for row in range(batch_size(batch) or 1)
        ]
        self._known: dict[frozenset[SampleIndex], bool] = {}
        self._cured: bool | None = None
        self.passes = 0
        self.found: DropSamples | None = None
        """The smallest set of samples seen to cure when it is left out."""
        self.minimal = False
        """Whether none of them could have stayed."""
        self.why = ""
        """Why there is none, or none that is minimal."""

    def learn(self, *, cured: bool) -> None:
        """What came of the remedy that was given last."""
        self._cured = cured

    def __iter__(self) -> Iterator[DropSamples]:
        try:
            yield from self._search()
        except _OutOfPasses:
            self._conclude(f"{self._most} passes were not enough")

    def _search(self) -> Iterator[DropSamples]:
        if len(self._order) < 2:
            self._conclude("there is only one sample in the step")
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
        self._conclude("no set of samples cures the step when it is left out")

    def _ask(self, left_out: frozenset[SampleIndex]) -> Iterator[DropSamples]:
        if left_out in self._known:
            return
        if self.passes >= self._most:
            raise _OutOfPasses
        self.passes += 1
        self._cured = None
        yield self._remedy(left_out)
        if self._cured is None:
            raise RuntimeError("nobody told the bisection what came of its last remedy")
        self._known[left_out] = self._cured

    def _conclude(self, why: str) -> None:
        cures = [left_out for left_out, cured in self._known.items() if cured]
        self.found = self._remedy(min(cures, key=len)) if cures else None
        self.why = why

    def _remedy(self, left_out: frozenset[SampleIndex]) -> DropSamples:
        rows: dict[int, list[int]] = {}
        for at, row in sorted(left_out):
            rows.setdefault(at, []).append(row)
        return DropSamples(self._scene, rows)


class _OutOfPasses(Exception):
    """No more passes may be asked for."""
