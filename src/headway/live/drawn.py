"""Batches of DataLoaders that nobody has wrapped.

While this is on, iterating over a torch DataLoader tells who listens about every batch, and the
loop it feeds may be run again by a guard. What the loader yields, and when, stays as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from torch.utils.data import DataLoader


class Listener(Protocol):
    """Who hears of batches."""

    def batch_wanted(self, frame: FrameType | None) -> Iterator[Any] | None:
        """The loop asks for its next batch; batches to be given to it before that, if any."""

    def batch_drawn(self, loader: Any, batch: Any, waited: float) -> None:
        """A batch came out of a loader."""

    def pass_begun(self, loader: Any) -> None:
        """A loader is iterated over."""


class DrawnBatches:
    """An iterator over a loader's batches that tells of each; else it is the loader's own."""

    def __init__(self, source: Any, loader: Any, listener: Listener) -> None:
        self._source = source
        self._loader = loader
        self._listener = listener
        self._again: Iterator[Any] | None = None

    def __iter__(self) -> DrawnBatches:
        return self

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __next__(self) -> Any:
        if _handed_out is not None:
            return next(_handed_out)
        if self._again is None:
            self._again = self._listener.batch_wanted(sys._getframe(1))
        if self._again is not None:
            for batch in self._again:
                return batch
            self._again = None
        asked = time.perf_counter()
        batch = next(self._source)
        self._listener.batch_drawn(self._loader, batch, time.perf_counter() - asked)
        return batch


_handed_out: Iterator[Any] | None = None
"""While a step is run again that draws its batches by hand: those it had."""


@contextmanager
def handing_out(batches: Iterable[Any]) -> Iterator[None]:
    """While this lasts, every loader gives these: nothing is drawn that training would miss."""
    global _handed_out
    _handed_out = iter(batches)
    try:
        yield
    finally:
        _handed_out = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While this lasts, every DataLoader tells."""
    original: Callable[[Any], Any] = DataLoader.__iter__

    def telling(self: Any) -> Any:
        listener.pass_begun(self)
        return DrawnBatches(original(self), self, listener)

    DataLoader.__iter__ = telling  # type: ignore[method-assign]
    try:
        yield
    finally:
        if DataLoader.__iter__ is telling:
            DataLoader.__iter__ = original  # type: ignore[method-assign]
