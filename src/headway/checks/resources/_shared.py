"""Growth of one signal through the segments of a run, and the line that allocated the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, ClassVar, TypeAlias

from headway.checks.growth import Growth, GrowthRule, GrowthWatch, growth_onset, scale_rule
from headway.core.check import Check
from headway.core.findings import Finding, Where
from headway.core.numbers import say, say_bytes
from headway.core.records import EventRecord, Header, Moment, StepRecord, moment_of, record_at
from headway.core.signals import PERCENT_BYTES
from headway.core.state import register_state_class

# The source of retained memory, from an event, as plain data that a check can store. Growing memory
# only shows that something is retained; the events `retained` and `growth` say what and where.

AllocationSite: TypeAlias = dict[str, Any]
"""The known ones of `file`, `line`, `function`, `op`, `holder`, …"""

_SITE_TYPES: dict[str, type | tuple[type, ...]] = {
    "of": str,
    "what": str,
    "file": str,
    "line": int,
    "function": str,
    "op": str,
    "holder": str,
    "keeps_line": int,
    "keeps_function": str,
    "bound": int,
    "carried": bool,
    "bytes": (int, float),
    "steps": int,
}


def read_allocation_site(event: EventRecord) -> AllocationSite:
    """The valid fields of the event: a log may contain anything."""
    return {
        name: event.data[name]
        for name, kind in _SITE_TYPES.items()
        if isinstance(event.data.get(name), kind)
    }


def explains_growth_of(event: EventRecord, signal: str) -> bool:
    """Whether the event explains the growth of this signal."""
    if event.kind == "retained":
        return event.data.get("bound") is None
    return event.kind == "growth" and event.data.get("of") == signal


def allocation_where(origin: AllocationSite, rank: int = 0) -> Where:
    """The allocation site as the location of a finding."""
    return Where(
        file=origin.get("file"),
        line=origin.get("line"),
        function=origin.get("function"),
        op=origin.get("op"),
        rank=rank or None,
    )


def describe_growth(origin: AllocationSite) -> str:
    """What grows and the line that allocated it; empty if unknown."""
    line = describe_line(origin)
    if not line:
        return ""
    if origin.get("what") == "workers":
        return f"the loader workers grow; their data set is at {line}"
    return f"the retained memory was allocated at {line}"


def describe_line(origin: AllocationSite) -> str:
    """`train.py:42 in main`; empty if the line is unknown."""
    if "file" not in origin or "line" not in origin:
        return ""
    function = origin.get("function")
    inside = f" in {function}" if function and function != "<module>" else ""
    return f"{PurePath(origin['file']).name}:{origin['line']}{inside}"


# The growth of one signal: reported at once in a live run, at the end of a log.


@register_state_class
class SegmentGrowth:
    """Follows a signal through the segments of a run: a new process has its own level."""

    __slots__ = ("latest", "past", "per_label", "rows", "watch")

    def __init__(self) -> None:
        self.watch = GrowthWatch()
        self.rows = False
        self.per_label = 1
        self.latest: Moment | None = None
        self.past: list[tuple[Moment, GrowthWatch]] = []
        """In a log, which is judged at its end: the segments before."""

    def begin(self, header: Header, signal: str, *, segments: int = 0) -> None:
        """Start a segment. `segments`: number of earlier ones judged at the end of a log, too."""
        if header.cadence == "rows" and self.latest is not None and segments:
            self.past = [*self.past, (self.latest, self.watch)][-segments:]
            self.watch = GrowthWatch()
        self.watch.restart()
        self.rows = header.cadence == "rows"
        self.per_label = header.steps_per_label(signal)

    def admit(self, record: StepRecord, value: float, rule: GrowthRule) -> Growth | None:
        """Learn a value; the growth it completes, if any."""
        self.latest = moment_of(record)
        rule = scale_rule(self.per_label, rule)
        if self.rows:
            self.watch.note(record.step, value, rule)
            return None
        return self.watch.admit(record.step, value, rule)

    def at_the_end(self, rule: GrowthRule) -> Iterator[tuple[StepRecord, Growth]]:
        """The first growth of a log, dated by where it began."""
        if not self.rows or self.latest is None:
            return
        rule = scale_rule(self.per_label, rule)
        for at, watch in (*self.past, (self.latest, self.watch)):
            growth = watch.verdict(rule)
            if growth is not None:
                yield replace(record_at(at), step=growth_onset(watch, growth)), growth
                return

    def to_state(self) -> Any:
        return [self.watch, self.rows, self.per_label, self.latest, self.past]

    @classmethod
    def from_state(cls, state: Any) -> SegmentGrowth:
        found = cls()
        found.watch, found.rows, found.per_label, found.latest, found.past = state
        return found


def _say_percent(level: float) -> str:
    return f"{say(level / PERCENT_BYTES)} %"


class MemoryGrowthCheck(Check):
    """Base of checks that report memory which rises without a plateau, in the signal they need."""

    memory: ClassVar[str]
    """What rises, as the message begins."""
    unknown: ClassVar[str]
    """Why it rises, if the line that allocates it is unknown."""
    remedies: ClassVar[tuple[str, ...]]

    @dataclass(frozen=True)
    class Limits(GrowthRule):
        ratio: float = 1.1
        amount: float = 64 * 2**20

    def start(self) -> None:
        self.growth = SegmentGrowth()
        self.origin: AllocationSite = {}

    def begin(self, header: Header) -> None:
        self.growth.begin(header, self.needs.signals[0], segments=4)

    def observe(self, record: StepRecord | EventRecord) -> Iterable[Finding]:
        [signal] = self.needs.signals
        if isinstance(record, EventRecord):
            if explains_growth_of(record, signal):
                self.origin = read_allocation_site(record)
            return
        level = record.values.get(signal)
        if level is None or record.held:
            return
        growth = self.growth.admit(record, level, self.limits)
        if growth is not None:
            yield self._finding(record, growth)

    def finish(self) -> Iterable[Finding]:
        for record, growth in self.growth.at_the_end(self.limits):
            yield self._finding(record, growth)

    def _finding(self, record: StepRecord, growth: Growth) -> Finding:
        [signal] = self.needs.signals
        facts = self.context.header.facts
        column = (facts.get("memory_columns") or {}).get(signal)
        named = f" (`{column}` in the log)" if column else ""
        show = _say_percent if signal in (facts.get("in_percent") or ()) else say_bytes
        return self.find(
            record,
            f"{self.memory}{named} rose from {show(growth.before)} to {show(growth.after)} "
            f"over {growth.steps} steps, {show(growth.per_step)} per step, and is still "
            f"rising at the same rate: {describe_growth(self.origin) or self.unknown}",
            where=allocation_where(self.origin, record.rank),
            remedies=self.remedies,
            before=growth.before,
            after=growth.after,
            per_step=growth.per_step,
            since_step=int(growth.start),
        )
