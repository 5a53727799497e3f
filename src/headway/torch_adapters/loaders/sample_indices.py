"""Determines which samples a DataLoader puts into each batch, without changing what it yields.

A loader with workers draws indices from its sampler long before their batches come out, the first
of them while it is being iterated for the first time. So a recorder takes the sampler's place while
`iter(loader)` looks it up. It hands the sampler's own indices on, one for one and when asked, and
remembers those of the batches that are still under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, dataloader

from headway.torch_adapters.loaders.batch_fetching import asked_index, failed_samples_noted

ITERATORS = ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")
"""The iterators whose order is known; those of a subclass may reorder or read ahead."""


class IndexRecorder:
    """Takes the place of a sampler and records the indices that it draws.

    It does not hold the loader: persistent workers end when the last reference to theirs is gone.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.batched = loader.batch_sampler is not None
        self.dataset = _describe_dataset(loader.dataset)
        self._name = "batch_sampler" if self.batched else "sampler"
        self._sampler = vars(loader)[self._name]
        self.under_way: dict[int, Any] = {}
        """Indices of batches that did not come out yet, by the number of their batch."""
        self.drawn = 0
        """How many lists of indices the loader drew."""

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks twice at its start: ask the sampler as often, it may draw
        # random numbers each time.
        self.under_way.clear()
        self.drawn = 0
        return _RecordedPass(self, iter(self._sampler))

    def take(self, number: int | None) -> Any:
        """The indices that were drawn as the so-many-th; None where they are not known."""
        return None if number is None else self.under_way.pop(number, None)

    @contextmanager
    def in_place(self, loader: DataLoader[Any]) -> Iterator[None]:
        """While this lasts, the loader's sampler is this recorder."""
        # Past `DataLoader.__setattr__`, which refuses: what it fears for is put back at once.
        homes = [(vars(loader), self._name)]
        living = vars(loader).get("_iterator")
        if living is not None:  # persistent workers: their iterator keeps the sampler by itself
            homes.append((vars(living), "_index_sampler"))
        for attributes, name in homes:
            attributes[name] = self
        try:
            yield
        finally:
            for attributes, name in homes:
                attributes[name] = self._sampler

    def leave(self, iterator: Any) -> None:
        """An iterator made meanwhile goes back to the sampler at its next epoch."""
        if vars(iterator).get("_index_sampler") is self:
            iterator._index_sampler = self._sampler


class _RecordedPass:
    """One pass over the sampler."""

    def __init__(self, tape: IndexRecorder, source: Iterator[Any]) -> None:
        self._tape = tape
        self._source = source

    def __iter__(self) -> _RecordedPass:
        return self

    def __next__(self) -> Any:
        indices, tape = next(self._source), self._tape
        tape.under_way[tape.drawn] = _copied(indices)
        tape.drawn += 1
        return indices


class DrawnSamples(NamedTuple):
    """The samples of a batch."""

    dataset: str
    indices: Any
    """As the sampler drew them; None: not known."""
    batched: bool
    """The indices are a list, one per sample; otherwise the index of a ready-made batch."""
    epoch: int
    """Number of earlier passes over the loader."""
    number: int
    """Number of earlier batches in this pass."""

    def listed(self) -> Sequence[Any]:
        """One index per sample; empty if they are not known."""
        drawn = self.indices
        return tuple(drawn) if self.batched and isinstance(drawn, (list, tuple)) else ()


class IndexedIterator:
    """A loader's iterator that also knows the indices of the batch it returned last."""

    def __init__(self, iterator: Any, tape: IndexRecorder) -> None:
        self.indices: Any = None
        self.tape = tape
        self.given = 0
        """Number of batches so far, those that could not be loaded included."""
        self.epoch = 0
        """Number of earlier passes over the loader."""
        self._iterator = iterator
        self._ordered = getattr(iterator, "_in_order", True)

    def __iter__(self) -> IndexedIterator:
        return self

    def __next__(self) -> Any:
        before = None if self._ordered else self._tasks()
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except Exception:  # of the data set: the next batch may be fine
            self._count(before)
            raise
        self._count(before)
        return batch

    def _count(self, before: set[int] | None) -> None:
        number = self.given if before is None else _find_removed(before, self._tasks())
        self.given += 1
        self.indices = self.tape.take(number)

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def drawn(self) -> DrawnSamples:
        """The samples of the last batch, or of the one whose loading has raised."""
        tape = self.tape
        return DrawnSamples(tape.dataset, self.indices, tape.batched, self.epoch, self.given - 1)

    def _tasks(self) -> set[int]:
        """Numbers of the batches workers are busy with: a task is dropped when its batch is out."""
        return set(getattr(self._iterator, "_task_info", ()))


def make_index_recorder(loader: Any) -> IndexRecorder | None:
    """A tape for a loader that draws from a sampler in the way torch's own does; else None."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if type(loader).__iter__ is not DataLoader.__iter__:
        return None
    homes = vars(loader)
    if homes.get("batch_sampler") is None and homes.get("sampler") is None:
        return None  # a subclass that keeps them elsewhere
    return IndexRecorder(loader)


def iterate_loader(loader: Any, tape: IndexRecorder | None) -> Iterator[Any]:
    """`iter(loader)`, with the indices on tape where the iterator is one of torch's own."""
    return iterate_recorded(loader, tape, lambda: iter(loader))


def is_recorded(loader: Any) -> bool:
    """Whether a recorder stands in for the sampler already: the loader is in `guard(...)`."""
    return any(isinstance(item, IndexRecorder) for item in vars(loader).values())


def iterate_recorded(
    loader: Any, tape: IndexRecorder | None, begin: Callable[[], Iterator[Any]]
) -> Iterator[Any]:
    if tape is None:
        return begin()
    with tape.in_place(loader), failed_samples_noted():
        iterator = begin()
    known = tuple(kind for name in ITERATORS if (kind := getattr(dataloader, name, None)))
    if type(iterator) not in known:
        return iterator
    tape.leave(iterator)
    return IndexedIterator(iterator, tape)


_ITERATION = frozenset(
    {"__next__", "_next_data", "_next_index", "_process_data", "_get_data", "_try_get_data"}
)
"""Methods of torch's loader iterators that are running while a batch is loaded."""


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """What a loader was loading when it raised, read from the frames of the exception."""

    indices: Sequence[Any] = ()
    """The samples of the batch; empty if they are not known."""
    index: Any = None
    """The sample itself; None if it was loaded in a worker, or is not known."""
    dataset: Any = None
    """The data set; None for one without indices."""
    exits: Sequence[int] = ()
    """The exit codes of the workers that torch has found dead: -7 for SIGBUS."""


def find_failed_load(error: BaseException) -> FailedLoad | None:
    """What a DataLoader was loading when it raised this; None if no loader raised it."""
    inside = False
    indices: Sequence[Any] = ()
    index: Any = None
    dataset: Any = None
    dead: Sequence[Any] = ()
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        file, names = frame.f_code.co_filename.replace("\\", "/"), frame.f_locals
        owner = names.get("self")
        if isinstance(owner, IndexedIterator):
            indices = owner.drawn().listed()
        elif file.endswith("torch/utils/data/dataloader.py"):
            inside = inside or frame.f_code.co_name in _ITERATION
            dataset = getattr(owner, "_dataset", dataset)
            dead = names.get("failed_workers", dead)
        elif file.endswith("torch/utils/data/_utils/fetch.py"):
            inside = True
            index = names.get("idx", index)
            dataset = getattr(owner, "dataset", dataset)
            batch = names.get("possibly_batched_index")
            if not indices and isinstance(batch, (list, tuple)):
                indices = batch
        elif index is None and owner is dataset:  # it loads the samples of a batch itself
            index = asked_index(frame, indices)
    if not inside:
        return None
    mapped = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    exits = tuple(code for item in dead if (code := getattr(item, "exitcode", None)) is not None)
    return FailedLoad(tuple(indices), index, dataset if mapped else None, exits)


def _describe_dataset(dataset: Any) -> str:
    """A short description of a data set, to distinguish its indices from those of another."""
    try:
        return f"{type(dataset).__name__}[{len(dataset)}]"
    except Exception:  # many have no length, and some raise what they like when asked
        return type(dataset).__name__


def _find_removed(before: set[int], after: set[int]) -> int | None:
    gone = before - after
    return gone.pop() if len(gone) == 1 else None


def _copied(indices: Any) -> Any:
    """Indices as they are now: some samplers fill the same list again for every batch."""
    if isinstance(indices, (list, tuple)):
        return tuple(indices)
    if isinstance(indices, Tensor):
        return indices.clone()
    if isinstance(indices, np.ndarray):
        return indices.copy()
    # An iterator must not be read: the loader still has to.
    return indices if isinstance(indices, (int, str, range, np.integer)) else None
