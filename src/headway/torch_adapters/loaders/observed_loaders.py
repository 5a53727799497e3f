"""Observes DataLoaders that are not wrapped by `guard(...)`.

While observed, a DataLoader reports every batch to a listener, and a guard may re-run the loop that
it feeds. What the loader yields, and when, does not change.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any, Protocol

from torch.utils.data import DataLoader

from headway.torch_adapters.frames import current_frame
from headway.torch_adapters.loaders.sample_indices import (
    DrawnSamples,
    IndexedIterator,
    is_recorded,
    iterate_recorded,
    make_index_recorder,
)
from headway.torch_adapters.patching import wrap_function


class LoaderListener(Protocol):
    """The interface of objects that are notified of batches."""

    def batch_wanted(self, frame: FrameType | None) -> Iterator[Any] | None:
        """The loop requests its next batch; the batches to yield before that, if any."""

    def batch_drawn(
        self, loader: Any, batch: Any, waited: float, samples: DrawnSamples | None
    ) -> None:
        """A batch is handed to the loop; `samples`: its indices in the data set, if known."""

    def pass_begun(self, loader: Any) -> None:
        """A loader is iterated over."""


class ObservedIterator:
    """A loader's iterator that reports each batch."""

    def __init__(self, source: Any, loader: Any, listener: LoaderListener) -> None:
        self._source = source
        self._loader = loader
        self._listener = listener
        self._again: Iterator[Any] | None = None
        self._drawn: deque[tuple[Any, float, DrawnSamples | None]] = deque()
        """Batches that the loop does not have yet."""
        self._given = 0

    def __iter__(self) -> ObservedIterator:
        return self

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __next__(self) -> Any:
        if _handed_out is not None:
            return next(_handed_out)
        frame = current_frame(1)
        if self._again is None:
            self._again = self._listener.batch_wanted(frame)
        if self._again is not None:
            for batch in self._again:
                return batch
            self._again = None
        reads_ahead = frame is not None and _reads_ahead(frame.f_code.co_filename)
        asked = time.perf_counter()
        try:
            batch = next(self._source)
        except StopIteration:
            if self._drawn:
                self._report_next()
            raise
        waited = time.perf_counter() - asked
        number, self._given = self._given, self._given + 1
        known = isinstance(self._source, IndexedIterator)
        samples = self._source.drawn() if known else DrawnSamples("", None, True, 0, number)
        self._drawn.append((batch, waited, samples))
        if len(self._drawn) > reads_ahead:
            self._report_next()
        return batch

    def _report_next(self) -> None:
        self._listener.batch_drawn(self._loader, *self._drawn.popleft())


@lru_cache(maxsize=64)
def _reads_ahead(file: str) -> bool:
    """Whether the caller is a loader of Accelerate, which yields a batch after drawing the next."""
    return file.replace("\\", "/").endswith("accelerate/data_loader.py")


_handed_out: Iterator[Any] | None = None
"""Batches to hand out again while a step that calls `next()` is re-run."""


@contextmanager
def redeliver_batches(batches: Iterable[Any]) -> Iterator[None]:
    """While this lasts, every loader yields these batches and draws none."""
    global _handed_out
    _handed_out = iter(batches)
    try:
        yield
    finally:
        _handed_out = None


@contextmanager
def observe_loaders(listener: LoaderListener) -> Iterator[None]:
    """While this lasts, every DataLoader reports to the listener."""

    passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def wrap(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterate(self: Any) -> Any:
            listener.pass_begun(self)
            tape = None if is_recorded(self) else make_index_recorder(self)
            source = iterate_recorded(self, tape, lambda: original(self))
            if isinstance(source, IndexedIterator):
                source.epoch = passes[self] = passes.get(self, -1) + 1
            return ObservedIterator(source, self, listener)

        return iterate

    uninstall = wrap_function(DataLoader, "__iter__", wrap)
    try:
        yield
    finally:
        uninstall()
