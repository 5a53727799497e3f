"""The step without its guilty samples, and the bisection that finds them.

Healthy samples of the same batch take their rows, so shapes do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headway.explain.explanation import Origin, Spike
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.batch_rows import bad_rows, batch_size, with_rows_from

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
