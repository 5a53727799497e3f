"""Runs checks over a stream of records and collects findings and coverage.

The engine passes each record to the checks that can use it and judges nothing itself. A check that
cannot run on this source is listed with its reason. A check that raises is disabled and reported
(HD001), because a broken check must not stop a training.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import chain, groupby, repeat
from typing import Any

from headway import registry
from headway.config import Settings
from headway.core.check import (
    CHECKPOINT,
    Check,
    CheckSlot,
    Context,
    Observed,
    StepObservers,
    call_observe,
    no_checkpoints,
)
from headway.core.episodes import FindingEpisodes, RecordDistance, full_distance
from headway.core.findings import Finding, NotRun
from headway.core.incident_events import read_incident, read_traced
from headway.core.records import EventRecord, Header, Record, SetupRecord, StepRecord, TensorRecord

CRASHED = "check-crashed"
"""The kind of event that the engine emits for a check that raised."""

SCANNED = "scan"
"""The kind of event that lists the `roles` of all tensors that were scanned."""

PLACES = "places"
"""The topic of notable lines of the user's script, which any check may point at."""

_RECORD_NAMES = {
    StepRecord: "steps",
    SetupRecord: "set-up facts",
    TensorRecord: "tensors",
    EventRecord: "events",
}


class Engine:
    """Runs a set of checks over one stream."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        checks: Iterable[Check] | None = None,
        strict: bool = False,
        distance: RecordDistance = full_distance,
    ) -> None:
        """`strict` re-raises the exception of a check, for tests of checks.

        `distance`: distance between two findings, if records are left out of the stream.
        """
        if checks is None:
            self._slots = [
                CheckSlot(kind, kind.needs, partial(kind, limits))
                for kind, limits in registry.chosen_limits(settings or Settings()).items()
            ]
        else:
            self._slots = [
                CheckSlot(type(check), check.needs, type(check), check) for check in checks
            ]
        self._strict = strict
        self._header: Header | None = None
        self._size = 0
        """Number of ranks."""
        self._rows = False
        """Whether steps are rows of a finished log."""
        self._segments: list[Header] = []
        """The first header of each segment."""
        self._training_begins = 0
        """The first segment of the current training of the script."""
        self._places: dict[str, Any] = {}
        self._by_kind: dict[type, list[CheckSlot]] = {kind: [] for kind in _RECORD_NAMES}
        self._observers: dict[bool, StepObservers] = {}
        """The checks that look at a step with columns, and without; filled when one was seen."""
        self._fold = FindingEpisodes(distance)
        self.opened: list[Finding] = []
        """New findings of the last record, without repeats."""
        self._seat_all()

    @property
    def findings(self) -> list[Finding]:
        """All findings so far, with repeats folded, in the order of the stream."""
        return self._fold.findings

    def feed(self, record: Record) -> list[Finding]:
        """Pass one record to every check that can use it; returns their findings."""
        if self._size > 1 and self._of_another_rank(record):
            self.opened = []
            return []
        if type(record) is StepRecord:
            found = self._feed_step(record)
            self.opened = self._fold.add(found) if found else []
            return found
        if isinstance(record, Header):
            return self._take_header(record)
        if isinstance(record, SetupRecord) and record.topic == PLACES:
            self._take_places(record)
        found = []
        for slot in self._by_kind[type(record)]:
            if slot.looks_at(record):
                found += self._ask(slot, record)
        if isinstance(record, EventRecord) and record.kind == SCANNED:
            self._take_scan(record)
        self.opened = self._fold.add(found) if found else []
        if isinstance(record, EventRecord):
            incident = read_incident(record) or read_traced(record)
            if incident is not None:
                self._fold.explain(incident)
        return found

    def _feed_step(self, record: StepRecord) -> list[Finding]:
        observers = self._observers.get(bool(record.columns))
        if observers is None:
            return self._feed_first_step(record)
        # This runs at every step: where nothing is found, no code of ours but the checks'.
        left = iter(observers.asked)
        found: list[tuple[CheckSlot, Finding]] = []
        try:
            for finding in chain.from_iterable(map(call_observe, left, repeat(record))):
                found.append((observers.last(left), finding))  # noqa: PERF401 - kept if one raises
        except Exception as error:  # whatever a check raises, the run continues without it
            if self._strict:
                raise
            slot = observers.last(left)
            accepted = self._accept_all(record, [item for item in found if item[0] is not slot])
            accepted += self._quarantine(slot, error, record)
            for other in observers.following(left):  # reporting the crash may have stopped one
                accepted += self._ask(other, record)
            return accepted
        return self._accept_all(record, found) if found else []

    def _accept_all(
        self, record: StepRecord, found: Sequence[tuple[CheckSlot, Any]]
    ) -> list[Finding]:
        """What the checks have found, one check after the other."""
        accepted: list[Finding] = []
        for slot, group in groupby(found, key=lambda item: item[0]):
            try:
                accepted += self._accept(slot, [item for _, item in group])
            except Exception as error:
                if self._strict:
                    raise
                accepted += self._quarantine(slot, error, record)
        return accepted

    def _feed_first_step(self, record: StepRecord) -> list[Finding]:
        """Feed a step, and prepare the list of checks for further steps of its kind."""
        found: list[Finding] = []
        has_columns = bool(record.columns)
        slots = [slot for slot in self._by_kind[StepRecord] if has_columns or not slot.columns_only]
        for slot in slots:
            slot.seen = True
            found += self._ask(slot, record)
        if not any(slot.crashed or slot.check is None for slot in slots):
            self._observers[has_columns] = StepObservers(slots, rows=self._rows)
        return found

    def run(self, records: Iterable[Record]) -> list[Finding]:
        """Process a whole stream and finish."""
        for record in records:
            self.feed(record)
        self.finish()
        return self.findings

    def finish(self) -> list[Finding]:
        """End the stream; returns the findings that need its end."""
        found: list[Finding] = []
        for slot in self._active():
            if slot.check is not None:
                found += self._guarded(slot, slot.check.finish)
        self._fold.add(found)
        return found

    def not_run(self) -> list[NotRun]:
        """The checks that could not run on this stream, each with its reason."""
        return [
            NotRun(slot.kind.code, reason)
            for slot in self._slots
            if (reason := self._reason_not_run(slot)) is not None
        ]

    @property
    def last_segment(self) -> int:
        """The segment of the last header."""
        return 0 if self._header is None else self._header.segment

    @property
    def codes(self) -> list[str]:
        """The codes of all checks."""
        return [slot.kind.code for slot in self._slots]

    def coverage(self) -> tuple[int, int]:
        """(checks that ran, all checks)."""
        return len(self._slots) - len(self.not_run()), len(self._slots)

    def state_dict(self) -> dict[str, Any]:
        """The state of every check, as JSON; None for one that was never asked. A check that cannot
        save its state restarts later."""
        state: dict[str, Any] = {}
        for slot in self._slots:
            if slot.untouched:
                state[slot.kind.code] = None
                continue
            with self._tolerance():
                state[slot.kind.code] = self._check_of(slot).state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another engine stopped. A state that a check cannot read is ignored."""
        for slot in self._slots:
            if slot.kind.code not in state:
                continue
            kept = state[slot.kind.code]
            if kept is None:
                if slot.check is not None:  # it begins again, with the next record for it
                    slot.check = None
                    self._observers = {}
                continue
            with self._tolerance():
                self._check_of(slot).load_state_dict(kept)

    def _of_another_rank(self, record: Record) -> bool:
        """Whether another rank already reports this record.

        Ranks that decide together agree on every step, so one of them reports for all. Tensors and
        events belong to a single rank and are read from each.
        """
        header = self._header
        return (
            header is not None
            and record.rank != header.rank
            and isinstance(record, (Header, StepRecord, SetupRecord))
        )

    def _take_scan(self, event: EventRecord) -> None:
        listed = event.data.get("roles")
        roles = listed if isinstance(listed, (list, tuple)) else ()  # a log may contain anything
        for slot in self._by_kind[TensorRecord]:
            wanted = slot.needs.roles or roles
            if slot.needs.checkpoints:
                continue  # they judge saved tensors, and have received all of them
            slot.seen = slot.seen or any(role in wanted for role in roles)

    def _take_places(self, record: SetupRecord) -> None:
        # The same mapping object that every context refers to.
        self._places.update(record.facts)

    def _take_header(self, header: Header) -> list[Finding]:
        new_segment = self._header is None or header.segment != self._header.segment
        found = self._end_training(header)
        self._header, self._rows = header, header.cadence == "rows"
        self._size = header.world_size
        if new_segment:
            self._segments.append(header)
        context = Context(header, self._places)
        for slot in self._slots:
            slot.reason = slot.needs.unmet(header)
            if slot.check is None:
                continue
            slot.check.context = context
            if new_segment and not slot.crashed:
                found += self._guarded(slot, slot.check.begin_segment, header)
        self._seat_all()
        self.opened = self._fold.add(found)
        return found

    def _end_training(self, header: Header) -> list[Finding]:
        """Finish the checks whose history belongs to one training, where another one begins."""
        if self._header is None or header.training <= self._header.training:
            return []
        found: list[Finding] = []
        for slot in self._active():
            if slot.kind.scope == "training" and slot.check is not None:
                found += self._guarded(slot, slot.check.finish)
                slot.check = None
        self._training_begins = len(self._segments)
        return found

    def _seat_all(self) -> None:
        self._observers = {}
        for kind in self._by_kind:
            self._by_kind[kind] = [
                slot
                for slot in self._active()
                if kind in slot.needs.kinds and not (kind is StepRecord and slot.reason)
            ]

    def _active(self) -> list[CheckSlot]:
        return [slot for slot in self._slots if not slot.crashed]

    def _ask(self, slot: CheckSlot, record: Observed) -> list[Finding]:
        if slot.check is None:
            found = self._guarded(slot, self._create_check, slot)
            if slot.check is None:
                return found
        row = self._rows and type(record) is StepRecord
        return self._guarded(slot, slot.check.observe_row if row else slot.check.observe, record)

    def _create_check(self, slot: CheckSlot) -> tuple[Finding, ...]:
        self._check_of(slot)
        return ()

    def _check_of(self, slot: CheckSlot) -> Check:
        """The check; creates it and passes it the segments so far if it does not exist yet."""
        if slot.check is not None:
            return slot.check
        check = slot.create()
        first = self._training_begins if slot.kind.scope == "training" else 0
        for header in self._segments[first:]:
            check.context = Context(header, self._places)
            check.begin_segment(header)
        if self._header is not None:
            check.context = Context(self._header, self._places)
        slot.check = check
        return check

    def _guarded(self, slot: CheckSlot, ask: Callable[..., Any], *records: Any) -> list[Finding]:
        if slot.crashed:  # it may crash while another crash is being reported
            return []
        try:
            found = [*ask(*records)]
            return self._accept(slot, found) if found else found
        except Exception as error:  # whatever a check raises, the run continues without it
            if self._strict:
                raise
            at = records[0] if records and type(records[0]) in _RECORD_NAMES else None
            return self._quarantine(slot, error, at)

    @staticmethod
    def _accept(slot: CheckSlot, found: list[Any]) -> list[Finding]:
        invalid = [item for item in found if not isinstance(item, Finding)]
        if invalid:
            raise TypeError(f"a check must yield findings, not {invalid[0]!r}")
        return slot.check.without_repeats(found) if slot.check else found

    def _tolerance(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._strict else suppress(Exception)

    def _quarantine(self, slot: CheckSlot, error: Exception, at: Observed | None) -> list[Finding]:
        slot.crashed = True
        self._seat_all()
        frames = traceback.extract_tb(error.__traceback__)
        event = EventRecord(
            segment=at.segment if at else 0,
            seq=at.seq if at else 0,
            step=at.step if at else 0,
            kind=CRASHED,
            data={
                "check": slot.kind.code,
                "error": f"{type(error).__name__}: {error}",
                "file": frames[-1].filename if frames else None,
                "line": frames[-1].lineno if frames else None,
            },
        )
        return [
            finding
            for other in self._by_kind[EventRecord]
            if other.looks_at(event)
            for finding in self._ask(other, event)
        ]

    def _reason_not_run(self, slot: CheckSlot) -> str | None:
        if slot.crashed:
            return "it crashed and was disabled (HD001)"
        kinds = slot.needs.kinds
        if slot.seen:
            return None
        saved = slot.checkpoints or kinds == (EventRecord,)
        if saved and (reason := no_checkpoints(slot)) is not None:
            return reason
        if TensorRecord in kinds and self._header and self._header.source == CHECKPOINT:
            wanted = " or ".join(f"{role}s" for role in slot.needs.roles)
            return f"the checkpoints contain no {wanted or 'tensors'}"
        if slot.reason and (StepRecord in kinds or kinds == (EventRecord,)):
            return slot.reason
        if slot.unavailable is not None:
            return slot.unavailable
        if kinds == (EventRecord,):  # no event of its kind occurred
            return None
        if slot.needs.topics and SetupRecord in kinds:
            topics = " or ".join(topic.replace("-", " ") for topic in slot.needs.topics)
            return f"no facts about {topics}; `headway check` collects them"
        if (reason := no_checkpoints(slot)) is not None:
            return reason
        return f"no {' or '.join(_RECORD_NAMES[kind] for kind in kinds)} of the kind it needs"
