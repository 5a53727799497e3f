"""The step without its guilty samples: healthy ones of the same batch take their rows.

So every shape stays what it was. A batch that is guilty as a whole is replaced by another of the
same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headway.replay.explanation import Birth, Spike
from headway.replay.remedies.base import Remedy
from headway.replay.remedies.rows import bad_rows, batch_size, with_rows_from
from headway.replay.scene import Scene

Rows = Mapping[int, Sequence[int]]
"""Rows by batch of the step."""


class DropSamples(Remedy):
    key = "drop-samples"
    safe = True

    def __init__(self, scene: Scene, rows: Rows) -> None:
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
    def fitting(cls, found: Birth | Spike, scene: Scene) -> DropSamples | None:
        """For the rows that were named; for a poisoned batch also those that are seen to be bad."""
        rows: Rows
        if found.rows:
            rows = {found.batch: found.rows}
        elif isinstance(found, Birth) and found.kind == "poisoned-batch":
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

    def applied(self, scene: Scene) -> AbstractContextManager[None]:
        return nullcontext()

    def batches(self, scene: Scene) -> Sequence[Any]:
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


def _names(scene: Scene, at: int, rows: Sequence[int]) -> Sequence[Any]:
    return scene.sample_names(at, rows) if scene.sample_names is not None and rows else ()
