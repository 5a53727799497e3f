"""Runs checks over a stream of records and collects findings and coverage.

The engine passes each record to the checks that can use it and judges nothing itself. A check that
cannot run on this source is listed with its reason. A check that raises is disabled and reported
(HD001), because a broken check must not stop a training.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from headway import registry
from headway.checks.checkpoint_tensors import CHECKPOINT
from headway.config import Settings
from headway.core.check import Check, Context, Needs, Observed
from headway.core.episodes import FindingEpisodes, RecordDistance, full_distance
from headway.core.findings import Finding, NotRun
from headway.core.incident_events import read_incident, read_traced
from headway.core.records import EventRecord, Header, Record, SetupRecord, StepRecord, TensorRecord
from headway.core.signals import axis_of

CRASHED = "check-crashed"
"""The kind of event that the engine emits for a check that raised."""

SCANNED = "scan"
"""The kind of event that lists the `roles` of tensors that were scanned, whatever was found."""

PLACES = "places"
"""The topic of notable lines of the user's script, which any check may point at."""

UNAVAILABLE = "unavailable"
"""The fact that says why the facts of a topic could not be collected."""

_RECORD_NAMES = {
    StepRecord: "steps",
    SetupRecord: "set-up facts",
    TensorRecord: "tensors",
    EventRecord: "events",
}


@dataclass(slots=True)
class _CheckSlot:
    """A check and its state in this run."""

    kind: type[Check]
    needs: Needs
    create: Callable[[], Check]
    check: Check | None = None
    """None until the first record for the check: most sources lack what most checks need."""
    reason: str | None = None
    """Why it does not receive steps; None if it does."""
    seen: bool = False
    """Whether it received evidence that it can judge."""
    unavailable: str | None = None
    """Why the facts it needs could not be collected, if an observer tried."""
    crashed: bool = False
    checkpoints: int = 0
    """Number of checkpoints so far."""
    columns_only: bool = False
    """Whether it reads columns only, so that it ignores steps without columns."""

    def __post_init__(self) -> None:
        wanted = (*self.needs.signals, *self.needs.any_of)
        self.columns_only = bool(wanted) and all(axis_of(name) for name in wanted)

    def looks_at(self, record: Observed) -> bool:
        """Whether the check wants this record; records that it could run."""
        if type(record) is StepRecord:  # the common case: no further conditions
            self.seen = True
            return True
        needs = self.needs
        if isinstance(record, TensorRecord) and needs.roles and record.role not in needs.roles:
            return False
        if isinstance(record, EventRecord) and needs.events and record.kind not in needs.events:
            return False
        if needs.checkpoints and isinstance(record, (TensorRecord, EventRecord)):
            return self._looks_at_checkpoint(record)
        if isinstance(record, SetupRecord) and needs.topics:
            if record.topic not in needs.topics:
                return False
            why = record.facts.get(UNAVAILABLE)
            if why is not None:
                self.unavailable = str(why)
                return False
        # For a check that judges steps, set-up facts and events are only additional information.
        if not isinstance(record, (SetupRecord, EventRecord)) or StepRecord not in needs.kinds:
            self.seen = True
        return True

    def _looks_at_checkpoint(self, record: TensorRecord | EventRecord) -> bool:
        needs = self.needs
        if isinstance(record, EventRecord):
            self.checkpoints += record.kind == CHECKPOINT
        # Without a checkpoint it is a tensor of a running training, which is not evidence.
        enough = self.checkpoints >= needs.checkpoints
        if isinstance(record, TensorRecord):
            self.seen = self.seen or (
                enough and (not needs.decisive or record.role in needs.decisive)
            )
        elif TensorRecord not in needs.kinds:
            self.seen = self.seen or enough
        return True


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
            self._seats = [
                _CheckSlot(kind, kind.needs, partial(kind, limits))
                for kind, limits in registry.chosen_limits(settings or Settings()).items()
            ]
        else:
            self._seats = [
                _CheckSlot(type(check), check.needs, type(check), check) for check in checks
            ]
        self._strict = strict
        self._header: Header | None = None
        self._rows = False
        """Whether steps are rows of a finished log."""
        self._segments: list[Header] = []
        """The first header of each segment."""
        self._training_begins = 0
        """The first segment of the current training of the script."""
        self._places: dict[str, Any] = {}
        self._by_kind: dict[type, list[_CheckSlot]] = {kind: [] for kind in _RECORD_NAMES}
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
        if self._of_another_rank(record):
            self.opened = []
            return []
        if isinstance(record, Header):
            return self._take_header(record)
        if isinstance(record, SetupRecord) and record.topic == PLACES:
            self._take_places(record)
        found: list[Finding] = []
        has_columns = not isinstance(record, StepRecord) or bool(record.columns)
        for seat in self._by_kind[type(record)]:
            if (has_columns or not seat.columns_only) and seat.looks_at(record):
                found += self._ask(seat, record)
        if isinstance(record, EventRecord) and record.kind == SCANNED:
            self._take_scan(record)
        self.opened = self._fold.add(found) if found else []
        if isinstance(record, EventRecord):
            incident = read_incident(record) or read_traced(record)
            if incident is not None:
                self._fold.explain(incident)
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
        for seat in self._active():
            if seat.check is not None:
                found += self._guarded(seat, seat.check.finish)
        self._fold.add(found)
        return found

    def not_run(self) -> list[NotRun]:
        """The checks that could not run on this stream, each with its reason."""
        return [
            NotRun(seat.kind.code, reason)
            for seat in self._seats
            if (reason := self._why_not(seat)) is not None
        ]

    @property
    def last_segment(self) -> int:
        """The segment of the last header."""
        return 0 if self._header is None else self._header.segment

    @property
    def codes(self) -> list[str]:
        """The codes of all checks."""
        return [seat.kind.code for seat in self._seats]

    def coverage(self) -> tuple[int, int]:
        """(checks that ran, all checks)."""
        return len(self._seats) - len(self.not_run()), len(self._seats)

    def state_dict(self) -> dict[str, Any]:
        """The state of every check, as JSON. A check that cannot save its state restarts later."""
        state = {}
        for seat in self._seats:
            with self._tolerance():
                state[seat.kind.code] = self._check_of(seat).state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another engine stopped. A state that a check cannot read is ignored."""
        for seat in self._seats:
            if seat.kind.code in state:
                with self._tolerance():
                    self._check_of(seat).load_state_dict(state[seat.kind.code])

    def _of_another_rank(self, record: Record) -> bool:
        """Whether another rank already reports this record.

        Ranks that decide together agree on every step, so one of them reports for all. Tensors and
        events belong to a single rank and are read from each.
        """
        header = self._header
        return (
            header is not None
            and header.world_size > 1
            and record.rank != header.rank
            and isinstance(record, (Header, StepRecord, SetupRecord))
        )

    def _take_scan(self, event: EventRecord) -> None:
        listed = event.data.get("roles")
        roles = listed if isinstance(listed, (list, tuple)) else ()  # a log may contain anything
        for seat in self._by_kind[TensorRecord]:
            wanted = seat.needs.roles or roles
            if seat.needs.checkpoints:
                continue  # they judge saved tensors, and have received all of them
            seat.seen = seat.seen or any(role in wanted for role in roles)

    def _take_places(self, record: SetupRecord) -> None:
        # The same mapping object that every context refers to.
        self._places.update(record.facts)

    def _take_header(self, header: Header) -> list[Finding]:
        new_segment = self._header is None or header.segment != self._header.segment
        found = self._end_training(header)
        self._header, self._rows = header, header.cadence == "rows"
        if new_segment:
            self._segments.append(header)
        context = Context(header, self._places)
        for seat in self._seats:
            seat.reason = seat.needs.unmet(header)
            if seat.check is None:
                continue
            seat.check.context = context
            if new_segment and not seat.crashed:
                found += self._guarded(seat, seat.check.begin_segment, header)
        self._seat_all()
        self.opened = self._fold.add(found)
        return found

    def _end_training(self, header: Header) -> list[Finding]:
        """Finish the checks whose history belongs to one training, where another one begins."""
        if self._header is None or header.training <= self._header.training:
            return []
        found: list[Finding] = []
        for seat in self._active():
            if seat.kind.scope == "training" and seat.check is not None:
                found += self._guarded(seat, seat.check.finish)
                seat.check = None
        self._training_begins = len(self._segments)
        return found

    def _seat_all(self) -> None:
        for kind in self._by_kind:
            self._by_kind[kind] = [
                seat
                for seat in self._active()
                if kind in seat.needs.kinds and not (kind is StepRecord and seat.reason)
            ]

    def _active(self) -> list[_CheckSlot]:
        return [seat for seat in self._seats if not seat.crashed]

    def _ask(self, seat: _CheckSlot, record: Observed) -> list[Finding]:
        if seat.check is None:
            found = self._guarded(seat, self._create_check, seat)
            if seat.check is None:
                return found
        row = self._rows and type(record) is StepRecord
        return self._guarded(seat, seat.check.observe_row if row else seat.check.observe, record)

    def _create_check(self, seat: _CheckSlot) -> tuple[Finding, ...]:
        self._check_of(seat)
        return ()

    def _check_of(self, seat: _CheckSlot) -> Check:
        """The check; creates it and passes it the segments so far if it does not exist yet."""
        if seat.check is not None:
            return seat.check
        check = seat.create()
        first = self._training_begins if seat.kind.scope == "training" else 0
        for header in self._segments[first:]:
            check.context = Context(header, self._places)
            check.begin_segment(header)
        if self._header is not None:
            check.context = Context(self._header, self._places)
        seat.check = check
        return check

    def _guarded(self, seat: _CheckSlot, ask: Callable[..., Any], *records: Any) -> list[Finding]:
        if seat.crashed:  # it may crash while another crash is being reported
            return []
        try:
            found = [*ask(*records)]
            if found and (strange := [item for item in found if not isinstance(item, Finding)]):
                raise TypeError(f"a check must yield findings, not {strange[0]!r}")
            return seat.check.without_repeats(found) if found and seat.check else found
        except Exception as error:  # whatever a check raises, the run continues without it
            if self._strict:
                raise
            at = records[0] if records and type(records[0]) in _RECORD_NAMES else None
            return self._quarantine(seat, error, at)

    def _tolerance(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._strict else suppress(Exception)

    def _quarantine(self, seat: _CheckSlot, error: Exception, at: Observed | None) -> list[Finding]:
        seat.crashed = True
        self._seat_all()
        frames = traceback.extract_tb(error.__traceback__)
        event = EventRecord(
            segment=at.segment if at else 0,
            seq=at.seq if at else 0,
            step=at.step if at else 0,
            kind=CRASHED,
            data={
                "check": seat.kind.code,
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

    def _why_not(self, seat: _CheckSlot) -> str | None:
        if seat.crashed:
            return "it crashed and was disabled (HD001)"
        kinds = seat.needs.kinds
        if seat.seen:
            return None
        saved = seat.checkpoints or kinds == (EventRecord,)
        if saved and (reason := _no_checkpoints(seat)) is not None:
            return reason
        if TensorRecord in kinds and self._header and self._header.source == CHECKPOINT:
            wanted = " or ".join(f"{role}s" for role in seat.needs.roles)
            return f"the checkpoints contain no {wanted or 'tensors'}"
        if seat.reason and (StepRecord in kinds or kinds == (EventRecord,)):
            return seat.reason
        if seat.unavailable is not None:
            return seat.unavailable
        if kinds == (EventRecord,):  # no event of its kind occurred
            return None
        if seat.needs.topics and SetupRecord in kinds:
            topics = " or ".join(topic.replace("-", " ") for topic in seat.needs.topics)
            return f"no facts about {topics}; `headway check` collects them"
        if (reason := _no_checkpoints(seat)) is not None:
            return reason
        return f"no {' or '.join(_RECORD_NAMES[kind] for kind in kinds)} of the kind it needs"


def _no_checkpoints(seat: _CheckSlot) -> str | None:
    needs = seat.needs
    if not needs.checkpoints:
        return None
    if not seat.checkpoints:
        return "needs checkpoints; `headway scan` reads them"
    if seat.checkpoints < needs.checkpoints:
        return f"needs {needs.checkpoints} checkpoints of a run, but there is {seat.checkpoints}"
    wanted = " or ".join(f"{role}s" for role in needs.decisive or needs.roles or ("tensor",))
    return f"the checkpoints contain no {wanted}"
