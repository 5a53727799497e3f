"""Bases of checks about tensors that are non-finite and layers that stay dead or saturated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from headway.core.check import Check
from headway.core.facts import LISTED, say_list
from headway.core.findings import Finding, Where
from headway.core.model_facts import ActivationFacts
from headway.core.numbers import say, say_nonfinite
from headway.core.records import (
    Column,
    Header,
    Moment,
    SetupRecord,
    StepRecord,
    TensorRecord,
    moment_of,
    record_at,
)
from headway.core.state import register_state_class


@register_state_class
class LayerStreaks:
    """By position on the axis `act`; each layer is reported once, until it recovers."""

    __slots__ = ("count", "places", "reported", "since")

    def __init__(self) -> None:
        self.count: dict[int, int] = {}
        """Consecutive measurements."""
        self.since: dict[int, Moment] = {}
        self.reported: set[int] = set()
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
                self.reported.discard(position)
                continue
            if position not in self.count:
                self.since[position] = moment_of(record)
            self.count[position] = self.count.get(position, 0) + 1
            if self.count[position] >= looks and position not in self.reported:
                self.reported.add(position)
                yield position, value

    def where(self, position: int, member: str) -> Where:
        """The layer, and its line if known."""
        file, line, function = self.places.get(member, (None, None, None))
        return Where(file, line, function, member, rank=self.since[position][3] or None)

    def to_state(self) -> Any:
        return [self.count, self.since, self.reported, self.places]

    @classmethod
    def from_state(cls, state: Any) -> LayerStreaks:
        found = cls()
        found.count, found.since, found.reported, found.places = state
        return found


class LayerShareCheck(Check):
    """Base of checks that measure a share of each layer's values, in the one column they need."""

    consequence: ClassVar[str]
    remedies: ClassVar[tuple[str, ...]]

    def start(self) -> None:
        self.layers = LayerStreaks()

    def begin(self, header: Header) -> None:
        self.layers.begin()

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            self.layers.learn(record)
            return
        column = record.columns.get(self.needs.signals[0])
        if column is None:
            return
        share, looks = self.limits.share, self.limits.looks
        for position, found in self.layers.reached(record, column, share=share, looks=looks):
            yield self._finding(position, found)

    def describe(self, member: str, share: float) -> str:
        """What is wrong with a share of the layer, as the message begins."""
        raise NotImplementedError

    def _finding(self, position: int, share: float) -> Finding:
        member = self.context.name("act", position)
        since, looks = self.layers.since[position], self.layers.count[position]
        return self.find(
            record_at(since),
            f"{self.describe(member, share)}, in {looks} measurements since step {since[2]} "
            f"(limit {say(100 * self.limits.share)} %): {self.consequence}",
            subject=member,
            where=self.layers.where(position, member),
            remedies=self.remedies,
            share=share,
            limit=self.limits.share,
            looks=looks,
        )


class NonfiniteTensorCheck(Check):
    """Base of checks of weights and buffers: by norm at a step, and in full in a scan."""

    axis: ClassVar[str]
    measured: ClassVar[str]
    """What the column covers, as a message names it."""

    def observe(self, record: StepRecord | TensorRecord) -> Iterable[Finding]:
        if isinstance(record, TensorRecord):
            wanted = record.role in self.needs.roles and record.nonfinite
            if wanted and not self.is_intended(record):
                yield self._in_tensor(record)
            return
        column = record.columns.get(self.needs.any_of[0])
        bad = [] if column is None else self.bad_positions(column)
        if column is not None and bad:
            yield self._in_step(record, bad, len(column.values))

    def is_intended(self, record: TensorRecord) -> bool:
        """Whether the tensor is meant to contain infinities, such as a mask."""
        raise NotImplementedError

    def bad_positions(self, column: Column) -> list[int]:
        """Positions of the column whose tensors contain a NaN or an unintended infinity."""
        raise NotImplementedError

    def advise(self, step: int) -> list[str]:
        """What to do about a tensor that is non-finite at this step."""
        raise NotImplementedError

    def _in_tensor(self, record: TensorRecord, among: str = "", **more: Any) -> Finding:
        nan, inf = int(record.stats.get("nan", 0)), int(record.stats.get("inf", 0))
        return self.find(
            record,
            f"the {record.role} {record.name} contains {say_nonfinite(nan, inf)}{among}",
            where=Where(module=record.name, rank=record.rank or None),
            remedies=self.advise(record.step),
            tensors=[record.name],
            nan=nan,
            inf=inf,
            **more,
        )

    def _in_step(self, record: StepRecord, bad: list[int], count: int) -> Finding:
        names = [self.context.name(self.axis, position) for position in bad]
        return self.find(
            record,
            f"{len(bad)} of {count} {self.measured} contain NaN or Inf: {say_list(names)}",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=self.advise(record.step),
            tensors=names[:LISTED],
            tensor_count=len(bad),
            measured=count,
        )
