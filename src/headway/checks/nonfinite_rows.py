"""Base of checks that follow the non-finite rows of a finished log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.core.check import Check
from headway.core.findings import Finding
from headway.core.records import StepRecord, moment_of

RECOVERED = 2
"""Consecutive finite rows after a non-finite one that count as a recovery."""


class NonfiniteRowsCheck(Check):
    """Collects consecutive non-finite rows, and reports them once it is clear how they end."""

    def start(self) -> None:
        self.finite_before = 0
        """Finite values before the episode."""
        self.episode: dict[str, Any] | None = None
        """The non-finite rows since the last finite ones."""

    def finish(self) -> Iterable[Finding]:
        yield from self._close(came_back=False)

    def report(self, episode: dict[str, Any], *, came_back: bool) -> Iterable[Finding]:
        """The findings about an episode that is over."""
        raise NotImplementedError

    def nonfinite_row(self, record: StepRecord, **opening: Any) -> dict[str, Any]:
        """The episode with one more row; `opening` is what is kept of its first row."""
        if self.episode is None:
            self.episode = {"at": moment_of(record), "rows": 0, **opening}
        self.episode["rows"] += 1
        self.episode["good"] = 0
        return self.episode

    def finite_row(self) -> Iterable[Finding]:
        """Count a finite row; the findings about an episode that it ends."""
        if self.episode is None:
            self.finite_before += 1
            return
        self.episode["good"] += 1
        if self.episode["good"] >= RECOVERED:
            yield from self._close(came_back=True)
            self.finite_before += RECOVERED

    def _close(self, *, came_back: bool) -> Iterable[Finding]:
        episode, self.episode = self.episode, None
        if episode is not None:
            yield from self.report(episode, came_back=came_back)
