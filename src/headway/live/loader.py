"""The user's loader, watched: which batch the loop is at, and how long it took to come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from headway.live import rehearsal

if TYPE_CHECKING:
    from headway.live.guard import Guard

Batch = TypeVar("Batch")


class GuardedLoader(Generic[Batch]):
    """An iterable that tells the guard about every batch; its length is the loader's."""

    def __init__(self, guard: Guard, loader: Iterable[Batch]) -> None:
        self._guard = guard
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        if rehearsal.demanded():
            yield from rehearsal.rehearse(self._guard, self._loader)
            return
        journey = self._guard.journey
        number, one = journey.begin(self._loader)
        if one is None:
            return
        try:
            source = self._guard.draw_from(one, number)
            while True:
                self._guard.step_done()
                if self._guard.step_waits:
                    yield from self._guard.run_again(sys._getframe().f_back)
                asked = time.perf_counter()
                try:
                    batch = next(source)
                except StopIteration:
                    if self._guard.last_step_waits():
                        yield from self._guard.run_again(sys._getframe().f_back)
                    return
                one.given = source.given
                self._guard.saw_batch(batch, time.perf_counter() - asked, source.origin)
                yield batch
        finally:
            journey.end(number)
