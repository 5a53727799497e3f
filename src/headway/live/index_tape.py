"""Learning which samples a torch DataLoader puts into each batch, without changing what it yields.

A loader with workers draws indices from its sampler long before their batches come out, the first
of them while it is being iterated for the first time. So a tape takes the sampler's place for the
moment `iter(loader)` needs to look it up. It hands the sampler's own indices on, one for one and
when asked, and remembers those of the batches that are still under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, dataloader

ITERATORS = ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")
"""The iterators whose ways are known; those of somebody's subclass may reorder or read ahead."""


class IndexTape:
    """Stands in for a sampler and reads along.

    It does not hold the loader: persistent workers end when the last reference to theirs is gone.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.batched = loader.batch_sampler is not None
        self.dataset = _said(loader.dataset)
        self._name = "batch_sampler" if self.batched else "sampler"
        self._sampler = vars(loader)[self._name]
        self._under_way: dict[int, Any] = {}
        self._drawn = 0

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks twice at its start: ask the sampler as often, it may draw
        # random numbers each time.
        self._under_way.clear()
        self._drawn = 0
        return _Reading(self, iter(self._sampler))

    def note(self, indices: Any) -> None:
        """The loader drew these."""
        self._under_way[self._drawn] = _copied(indices)
        self._drawn += 1

    def take(self, number: int | None) -> Any:
        """The indices that were drawn as the so-many-th; None where they are not known."""
        return None if number is None else self._under_way.pop(number, None)

    @contextmanager
    def in_place(self, loader: DataLoader[Any]) -> Iterator[None]:
        """While this lasts, whoever asks the loader for its sampler gets the tape."""
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


class _Reading:
    """One pass over the sampler."""

    def __init__(self, tape: IndexTape, source: Iterator[Any]) -> None:
        self._tape = tape
        self._source = source

    def __iter__(self) -> _Reading:
        return self

    def __next__(self) -> Any:
        indices = next(self._source)
        self._tape.note(indices)
        return indices


class IndexedIterator:
    """A loader's iterator that also knows the indices of the batch it gave last."""

    def __init__(self, iterator: Any, tape: IndexTape) -> None:
        self.indices: Any = None
        self.tape = tape
        self._iterator = iterator
        self._given = 0
        self._ordered = getattr(iterator, "_in_order", True)

    def __iter__(self) -> IndexedIterator:
        return self

    def __next__(self) -> Any:
        before = None if self._ordered else self._tasks()
        batch = next(self._iterator)
        number = self._given if before is None else _the_one_gone(before, self._tasks())
        self._given += 1
        self.indices = self.tape.take(number)
        return batch

    def _tasks(self) -> set[int]:
        """Numbers of the batches workers are busy with: a task is dropped when its batch is out."""
        return set(getattr(self._iterator, "_task_info", ()))


def tape_for(loader: Any) -> IndexTape | None:
    """A tape for a loader that draws from a sampler in the way torch's own does; else None."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if type(loader).__iter__ is not DataLoader.__iter__:
        return None
    homes = vars(loader)
    if homes.get("batch_sampler") is None and homes.get("sampler") is None:
        return None  # a subclass that keeps them elsewhere
    return IndexTape(loader)


def iterate(loader: Any, tape: IndexTape | None) -> Iterator[Any]:
    """`iter(loader)`, with the indices on tape where the iterator is one of torch's own."""
    if tape is None:
        return iter(loader)
    with tape.in_place(loader):
        iterator: Iterator[Any] = iter(loader)
    known = tuple(kind for name in ITERATORS if (kind := getattr(dataloader, name, None)))
    if type(iterator) not in known:
        return iterator
    tape.leave(iterator)
    return IndexedIterator(iterator, tape)


def _said(dataset: Any) -> str:
    """A data set in short: tells the indices of one from those of another."""
    try:
        return f"{type(dataset).__name__}[{len(dataset)}]"
    except Exception:  # many have no length, and some raise what they like when asked
        return type(dataset).__name__


def _the_one_gone(before: set[int], after: set[int]) -> int | None:
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
