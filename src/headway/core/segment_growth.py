"""The growth of one signal: told at once in a live run, at its end in the log of another tool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headway.core.growth import Growth, GrowthRule, GrowthWatch, began, labels_of, rule_for
from headway.core.moment import Moment, moment_of, record_at
from headway.core.records import Header, StepRecord
from headway.core.state import remember


@remember
class SegmentGrowth:
    """Follows a signal through the segments of a run: a new process has a level of its own."""

    __slots__ = ("foreign", "latest", "past", "per_label", "watch")

    def __init__(self) -> None:
        self.watch = GrowthWatch()
        self.foreign = False
        self.per_label = 1
        self.latest: Moment | None = None
        self.past: list[tuple[Moment, GrowthWatch]] = []
        """In a log of another tool, which is judged at its end: the segments before."""

    def begin(self, header: Header, signal: str, *, segments: int = 0) -> None:
        """A segment begins. `segments`: so many before it are judged at the end of a log, too."""
        if header.foreign and self.latest is not None and segments:
            self.past = [*self.past, (self.latest, self.watch)][-segments:]
            self.watch = GrowthWatch()
        self.watch.restart()
        self.foreign = header.foreign
        self.per_label = labels_of(header, signal)

    def admit(self, record: StepRecord, value: float, rule: GrowthRule) -> Growth | None:
        """Learn a value; the growth it completes, if any."""
        self.latest = moment_of(record)
        rule = rule_for(self.per_label, rule)
        if self.foreign:
            self.watch.note(record.step, value, rule)
            return None
        return self.watch.admit(record.step, value, rule)

    def at_the_end(self, rule: GrowthRule) -> Iterator[tuple[StepRecord, Growth]]:
        """The first growth of a log, dated by where it began."""
        if not self.foreign or self.latest is None:
            return
        rule = rule_for(self.per_label, rule)
        for at, watch in (*self.past, (self.latest, self.watch)):
            growth = watch.verdict(rule)
            if growth is not None:
                yield replace(record_at(at), step=began(watch, growth)), growth
                return

    def to_state(self) -> Any:
        return [self.watch, self.foreign, self.per_label, self.latest, self.past]

    @classmethod
    def from_state(cls, state: Any) -> SegmentGrowth:
        found = cls()
        found.watch, found.foreign, found.per_label, found.latest, found.past = state
        return found
