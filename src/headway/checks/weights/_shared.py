"""Layers whose outputs stay dead or saturated from one measurement to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.core.findings import Where
from headway.core.model_facts import ActivationFacts
from headway.core.records import Column, Moment, SetupRecord, StepRecord, moment_of
from headway.core.state import remember


@remember
class LayersInARow:
    """By position on the axis `act`; each layer is reported once, until it recovers."""

    __slots__ = ("count", "places", "since", "told")

    def __init__(self) -> None:
        self.count: dict[int, int] = {}
        """Consecutive measurements."""
        self.since: dict[int, Moment] = {}
        self.told: set[int] = set()
        self.places: dict[str, tuple[str | None, int | None, str | None]] = {}

    def begin(self) -> None:
        """Start a segment: repeated steps add no evidence."""
        self.count = {}

    def learn(self, record: SetupRecord) -> None:
        """Store the line of code of an activation."""
        facts = ActivationFacts.of(record)
        if record.topic == "activation" and (member := facts.member):
            at = facts.locate()
            self.places[member] = (at.file, at.line, at.function)

    def reached(
        self, record: StepRecord, column: Column, *, share: float, looks: int
    ) -> Iterator[tuple[int, float]]:
        """The positions, with their shares, that have been at `share` for `looks` measurements."""
        for position, value in column.items():
            if not value >= share:
                self.count.pop(position, None)
                self.told.discard(position)
                continue
            if position not in self.count:
                self.since[position] = moment_of(record)
            self.count[position] = self.count.get(position, 0) + 1
            if self.count[position] >= looks and position not in self.told:
                self.told.add(position)
                yield position, value

    def where(self, position: int, member: str) -> Where:
        """The layer, and its line if known."""
        file, line, function = self.places.get(member, (None, None, None))
        return Where(file, line, function, member, rank=self.since[position][3] or None)

    def to_state(self) -> Any:
        return [self.count, self.since, self.told, self.places]

    @classmethod
    def from_state(cls, state: Any) -> LayersInARow:
        found = cls()
        found.count, found.since, found.told, found.places = state
        return found
