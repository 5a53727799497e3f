"""Which samples are guilty, where nobody could name them: by leaving out some and seeing.

A set of samples that cures when it is left out holds all the guilty ones. So the shortest run of
first samples that cures ends at the last guilty one, and halving finds it; then the same among
those before it, until what was found cures by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.replay.remedies.rows import batch_size
from headway.replay.remedies.samples import DropSamples
from headway.replay.scene import Scene

Sample = tuple[int, int]
"""Batch of the step, row in it."""


class Bisection:
    """Iterate over it, run the step under each remedy, and tell `learn` what came of it.

    search = Bisection(scene, most=8)
    for remedy in search:
        search.learn(cured=run(remedy))
    search.found, search.why
    """

    def __init__(self, scene: Scene, most: int) -> None:
        self._scene = scene
        self._most = most
        self._order: list[Sample] = [
            (at, row)
            for at, batch in enumerate(scene.batches)
            for row in range(batch_size(batch) or 1)
        ]
        self._known: dict[frozenset[Sample], bool] = {}
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
        guilty: frozenset[Sample] = frozenset()
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

    def _ask(self, left_out: frozenset[Sample]) -> Iterator[DropSamples]:
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

    def _remedy(self, left_out: frozenset[Sample]) -> DropSamples:
        rows: dict[int, list[int]] = {}
        for at, row in sorted(left_out):
            rows.setdefault(at, []).append(row)
        return DropSamples(self._scene, rows)


class _OutOfPasses(Exception):
    """No more passes may be asked for."""
