"""Which batch is it? By the samples in it where the loader lets us know, else by its content.

Nothing is computed for a batch that does no harm: the indices lie ready, the hash is made only when
somebody asks who a batch is.
"""

from __future__ import annotations

import json
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headway.live import scan
from headway.live.content_hash import content_hash
from headway.live.index_tape import IndexedIterator

Index: TypeAlias = "int | str | tuple[Index, ...]"

LOSSES_KEPT = 16
"""Losses that are remembered of a batch: one in most trainings."""
MOST_COPIED = 1 << 28
"""Bytes of a batch that are copied, so that it can be had again after the loop has changed it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a batch came from."""

    epoch: int
    """Passes over a guarded loader that were begun before this one."""
    number: int
    """Batches the loader gave before this one in this pass, avoided ones included."""
    dataset: str = ""
    indices: Any = None
    """What the sampler drew for it, as it was drawn; None where that is not known."""
    batched: bool = True
    """The indices are a list, one for each sample; else the one index of a ready-made batch."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a batch is: equal keys, same batch."""

    key: str
    indices: tuple[Index, ...] = ()
    dataset: str = ""
    sure: bool = True
    """The same key means the same batch; not so where part of it could not be looked into."""


@dataclass(slots=True)
class Kept:
    """A batch of the present step and what is known of it."""

    batch: Any
    origin: Origin | None = None
    position: int = 0
    """Batches of the same step that came before it."""
    losses: deque[Tensor] = field(default_factory=lambda: deque(maxlen=LOSSES_KEPT))
    blamed: bool = False
    run: Callable[[Any], Any] | None = None
    """How a framework runs forward and backward over a batch in its place."""
    versions: int | None = None
    """How often its tensors had been changed in place when it was handed out."""
    copies: Sequence[Tensor] | None = None
    """What its tensors held then, where the loop is known to change its batches."""
    _identity: Identity | None = None

    @property
    def size(self) -> int | None:
        """How many samples it holds."""
        indices = self.indices() if self.origin is not None and self.origin.batched else ()
        return len(indices) or scan.batch_size(self.batch)

    def watch_for_changes(self, *, copy: bool) -> None:
        """Remember what it is now; with `copy`, so that it can be had again."""
        self.versions = _versions(self.batch)
        if copy:
            tensors = _changeable(self.batch)
            if sum(tensor.nbytes for tensor in tensors) <= MOST_COPIED:
                self.copies = [tensor.detach().clone() for tensor in tensors]

    @property
    def changed(self) -> bool:
        """Whether the loop has changed it in place since it was handed out."""
        return self.versions is not None and self.versions != _versions(self.batch)

    @property
    def lost(self) -> bool:
        """Whether what was handed out cannot be had any more."""
        return self.changed and self.copies is None

    def restore(self) -> None:
        """What was handed out, in the same tensors."""
        if self.changed and self.copies is not None:
            _fill(_changeable(self.batch), self.copies)

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """The batch as it was handed out; afterwards, as the loop has left it."""
        if not self.changed or self.copies is None:
            yield
            return
        tensors = _changeable(self.batch)
        left = [tensor.detach().clone() for tensor in tensors]
        self.restore()
        try:
            yield
        finally:
            _fill(tensors, left)

    def indices(self) -> tuple[Index, ...]:
        """The data set's indices of its samples, in order; empty where they are not known."""
        return () if self.origin is None else _plain_indices(self.origin)

    def identity(self) -> Identity:
        """Worked out once, and only if somebody asks."""
        if self._identity is None:
            self._identity = self._work_out()
        return self._identity

    def _work_out(self) -> Identity:
        indices = self.indices()
        if indices and self.origin is not None:
            dataset = self.origin.dataset
            return Identity(f"indices-{_hash_of_set(dataset, indices)}", indices, dataset)
        found = content_hash(self.batch)
        return Identity(f"content-{found.text}", sure=found.whole)


Avoid: TypeAlias = Callable[[Kept], Any]


class Observed:
    """A pass over a loader: its batches as they come, and their origin; the avoided left out."""

    def __init__(
        self, source: Iterator[Any], epoch: int = 0, avoid: Avoid | None = None, *, given: int = 0
    ) -> None:
        """`given` batches of the source were drawn before."""
        self._source = source
        self._epoch = epoch
        self._avoid = avoid
        self.given = given
        """Batches of the source that were drawn so far, avoided ones included."""
        self.origin = Origin(epoch, given)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            batch = next(self._source)
            self.origin = self._whence()
            self.given += 1
            if self._avoid is None or not self._avoid(Kept(batch, self.origin)):
                return batch

    def _whence(self) -> Origin:
        source = self._source
        if not isinstance(source, IndexedIterator):
            return Origin(self._epoch, self.given)
        tape = source.tape
        return Origin(self._epoch, self.given, tape.dataset, source.indices, tape.batched)


def _versions(batch: Any) -> int:
    return sum(tensor._version for tensor in _changeable(batch))


def _changeable(batch: Any) -> list[Tensor]:
    return [tensor for tensor in scan.tensors_in(batch) if not tensor.is_inference()]


@torch.no_grad()
def _fill(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def frozen(value: Any) -> Index:
    """An index as something that can be compared, kept and written down. Raises TypeError."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    return operator.index(value)


def _plain_indices(origin: Origin) -> tuple[Index, ...]:
    drawn = origin.indices
    if isinstance(drawn, (Tensor, np.ndarray)):
        drawn = drawn.tolist()
    try:
        listed = drawn if origin.batched and isinstance(drawn, (list, tuple, range)) else [drawn]
        return tuple(frozen(item) for item in listed)
    except TypeError:  # None, or an index of a kind that has no name
        return ()


def _hash_of_set(dataset: str, indices: Iterable[Index]) -> str:
    # Sorted: the same samples in another order are the same batch.
    texts = sorted(json.dumps(index) for index in indices)
    return blake2b(json.dumps([dataset, texts]).encode(), digest_size=16).hexdigest()
