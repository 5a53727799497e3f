"""The base class of checks, and the evidence they declare that they need.

A check is one file in a family of `headway/checks/` with one class. Its docstring is its page in
the documentation; `headway explain CODE` prints it. Its attributes survive a resume (see
`core/state.py`). A check does not know other checks, files or torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import length_hint
from typing import Any, ClassVar, Literal, TypeAlias

from headway.core.bound import Bound
from headway.core.findings import Finding, Remedy, Severity, Where
from headway.core.records import EventRecord, Header, SetupRecord, StepRecord, TensorRecord
from headway.core.signals import axis_of, family
from headway.core.state import PLAIN, decode, encode

Status: TypeAlias = Literal["stable", "preview", "deprecated", "removed"]

HEADINGS = (
    "What it checks",
    "Why it matters",
    "How it is measured",
    "False alarms",
    "What to do",
    "References",
)
"""The sections every check's docstring has, in this order."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The evidence that a check requires."""

    signals: tuple[str, ...] = ()
    """Scalars or columns that must all exist. `loss/*`: at least one component."""
    any_of: tuple[str, ...] = ()
    """Scalars or columns of which at least one must exist."""
    kinds: tuple[type, ...] = (StepRecord,)
    """Kinds of records the check reads. With several kinds, one of them is enough to run it."""
    roles: tuple[str, ...] = ()
    """Roles of the tensors it reads; empty: all."""
    topics: tuple[str, ...] = ()
    """Topics of the set-up facts it reads; empty: all."""
    events: tuple[str, ...] = ()
    """Kinds of events it reads; empty: all."""
    checkpoints: int = 0
    """Number of checkpoints of a run it compares; 0: it reads tensors of a running training."""
    decisive: tuple[str, ...] = ()
    """The roles among `roles` that are required; empty: any of them is enough."""
    span: int | None = None
    """The longest span of a signal, in steps, for which the rule is valid."""
    nonfinite: bool = False
    """The source must not filter NaN and infinities out of the signals."""

    def unmet(self, header: Header) -> str | None:
        """Why a check with these needs cannot run on this source; None if it can."""
        described = header.signals
        missing = [name for name in self.signals if not _present(name, described)]
        if missing:
            return f"needs {', '.join(missing)}, which this source does not have"
        if self.any_of and not any(_present(name, described) for name in self.any_of):
            return f"needs one of {', '.join(self.any_of)}, but this source has none of them"
        for name in (*self.signals, *self.any_of):
            signal = described.get(name)
            if signal is None:
                continue
            if self.span is not None and signal.span > self.span:
                return (
                    f"{name} is a {signal.fold} over {signal.span} steps; "
                    f"this rule is valid for at most {self.span}"
                )
            if self.nonfinite and signal.nonfinite == "filtered":
                return f"{header.source} filters non-finite values out of {name}"
        return None


def _present(name: str, described: Mapping[str, Any]) -> bool:
    if name.endswith("/*"):
        return any(key.startswith(name[:-1]) for key in described)
    return name in described or any(family(key) == name for key in described)


@dataclass(frozen=True, slots=True)
class Context:
    """Context for every check: the current header, and lines of the user's code."""

    header: Header = field(default_factory=lambda: Header(source="nothing"))
    places: Mapping[str, Any] = field(default_factory=dict)
    """The known lines of the user's `backward`, `step`, `optimizer`, `clip`, …"""

    @property
    def rows(self) -> bool:
        """Whether the records are rows of a finished log, see `Cadence`."""
        return self.header.cadence == "rows"

    def names(self, axis: str) -> Sequence[str]:
        """Names along an axis of the columns."""
        return self.header.names(axis)

    def name(self, axis: str, position: int) -> str:
        """One name along an axis; its position if the source gives no name."""
        names = self.header.names(axis)
        return names[position] if position < len(names) else f"{axis}[{position}]"


_NO_CONTEXT = Context()
"""Of a check that no engine runs yet."""

Observed: TypeAlias = StepRecord | SetupRecord | TensorRecord | EventRecord
"""The records a check may receive; headers reach it through `begin` and `context`."""


class Check:
    """Base class of all checks: subclass it, set the class attributes, and write `observe`."""

    code: ClassVar[str]
    """`HD101`: permanent, never reused."""
    name: ClassVar[str]
    """`nonfinite-loss`: names the fault, not the fix; equals the name of the file."""
    severity: ClassVar[Severity] = Severity.WARNING
    """The default; a single finding may be less severe, never more."""
    status: ClassVar[Status] = "stable"
    """`preview` runs only when selected; `removed` never runs but keeps its page and its code."""
    summary: ClassVar[str]
    """One line for lists."""
    needs: ClassVar[Needs] = Needs()
    points_at: ClassVar[str | tuple[str, ...] | None] = None
    """The place (see `Context.places`) of a finding that names no line itself; with several
    places, the first that is known."""
    explains: ClassVar[tuple[str, ...]] = ()
    """Codes of the findings that this one can cause. Every built-in check declares it."""
    yields_to: ClassVar[tuple[str, ...]] = ()
    """Of two findings that explain each other, the one named here is the cause."""
    once: ClassVar[Literal["segment", "run"] | None] = None
    """Report each subject once in a segment or in the run: the engine drops further findings."""
    scope: ClassVar[Literal["training", "run"]] = "run"
    """What its history covers. `training`: it ends and starts again where the script begins to
    train another model with another optimizer."""
    ends_run: ClassVar[bool] = False
    """Whether a run with such a finding did not end normally: its verdict is `failed`."""
    bound: ClassVar[Bound | None] = None
    """The limit that the guard enforces before the step, if the check has one."""

    @dataclass(frozen=True)
    class Limits:
        """The numbers a user can change in `[tool.headway.limits.HDNNN]`."""

    def __init__(self, limits: Mapping[str, Any] | None = None) -> None:
        self.limits: Any = self.Limits(**(limits or {}))
        self.context = _NO_CONTEXT
        if self.once is not None:
            self.reported_subjects: set[str] = set()
            """Subjects reported so far; the engine keeps this set."""
        self.start()

    def start(self) -> None:
        """Create the attributes of the check. Called once, before any record."""

    def begin(self, header: Header) -> None:
        """The stream or a new segment begins."""

    def begin_segment(self, header: Header) -> tuple[Finding, ...]:
        """Called by the engine for each segment; returns no findings."""
        if self.once == "segment":
            self.reported_subjects.clear()
        self.begin(header)
        return ()

    def without_repeats(self, found: list[Finding]) -> list[Finding]:
        """The findings whose subject is new, if the check reports each one once; for the engine."""
        if self.once is None:
            return found
        fresh = []
        for finding in found:
            if finding.subject not in self.reported_subjects:
                self.reported_subjects.add(finding.subject)
                fresh.append(finding)
        return fresh

    def observe(self, record: Any) -> Iterable[Finding]:
        """The findings in one record of the kinds in `needs`."""
        raise NotImplementedError

    def observe_row(self, record: Any) -> Iterable[Finding]:
        """The findings in one row of a finished log; by default as for a step."""
        return self.observe(record)

    def finish(self) -> Iterable[Finding]:
        """The findings that are certain only when the stream is over."""
        return ()

    def find(
        self,
        record: Observed,
        message: str,
        *,
        subject: str = "",
        where: Where | None = None,
        severity: Severity | None = None,
        remedies: Sequence[str | Remedy] = (),
        **evidence: Any,
    ) -> Finding:
        """A finding of this check at this record."""
        return Finding(
            code=self.code,
            name=self.name,
            severity=self.severity if severity is None else severity,
            step=record.step,
            message=message,
            where=self._pointed(where or Where(rank=record.rank or None)),
            evidence=evidence,
            remedies=tuple(Remedy(item) if isinstance(item, str) else item for item in remedies),
            subject=subject,
            segment=record.segment,
            seq=record.seq,
        )

    def _pointed(self, where: Where) -> Where:
        wanted = (self.points_at,) if isinstance(self.points_at, str) else self.points_at or ()
        seen = (self.context.places.get(name) for name in wanted)
        place = next((item for item in seen if isinstance(item, Mapping)), None)
        if where.file is not None or place is None:
            return where
        file, line, function = (place.get(key) for key in ("file", "line", "function"))
        if not (isinstance(file, str) and isinstance(line, int)):
            return where
        name = function if isinstance(function, str) else None
        return replace(where, file=file, line=line, function=name)

    def state_dict(self) -> dict[str, Any]:
        """All attributes, as JSON."""
        return {
            name: value if type(value) in PLAIN else encode(value) for name, value in self._kept()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes; those of another version are ignored."""
        known = {name for name, _ in self._kept()}
        # Decode before setting anything: a state that cannot be read leaves the check unchanged.
        read = {name: decode(value) for name, value in state.items() if name in known}
        for name, value in read.items():
            setattr(self, name, value)

    def _kept(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self).items():
            if name not in ("limits", "context"):
                yield name, value


# The state of each check in a run.

CHECKPOINT = "checkpoint"
"""The source of records about checkpoints, and the kind of event that begins one."""

UNAVAILABLE = "unavailable"
"""The fact that says why the facts of a topic could not be collected."""


@dataclass(slots=True)
class CheckSlot:
    """A check and its state in this run."""

    kind: type[Check]
    needs: Needs
    create: Callable[[], Check]
    check: Check | None = None
    """None until the first record for the check: most sources lack the data of most checks."""
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

    @property
    def untouched(self) -> bool:
        """Whether the check is as it began: it was never asked, and learns nothing from headers."""
        kind = self.kind
        return (
            self.check is None
            and kind.begin is Check.begin
            and kind.begin_segment is Check.begin_segment
        )

    def looks_at(self, record: Observed) -> bool:
        """Whether the check wants this record; records that it could run."""
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


Observe: TypeAlias = Callable[[Any], Iterable[Finding]]


def call_observe(observe: Observe, record: StepRecord) -> Iterable[Finding]:
    """Ask a check about a step."""
    return observe(record)


call_observe = getattr(operator, "call", call_observe)  # since Python 3.11; it runs no bytecode


class StepObservers:
    """The checks that look at every step of a kind."""

    def __init__(self, slots: Sequence[CheckSlot], *, rows: bool) -> None:
        self._slots = [slot for slot in slots if slot.check is not None]
        self.asked: list[Observe] = [
            slot.check.observe_row if rows else slot.check.observe
            for slot in self._slots
            if slot.check is not None
        ]

    def last(self, left: Any) -> CheckSlot:
        """The check that an iterator over `asked` has just handed out."""
        return self._slots[len(self._slots) - length_hint(left) - 1]

    def following(self, left: Any) -> list[CheckSlot]:
        """Those that it has not handed out yet."""
        return self._slots[len(self._slots) - length_hint(left) :]


def no_checkpoints(slot: CheckSlot) -> str | None:
    """Why a check that compares checkpoints could not run; None if it does not need them."""
    needs = slot.needs
    if not needs.checkpoints:
        return None
    if not slot.checkpoints:
        return "needs checkpoints; `headway scan` reads them"
    if slot.checkpoints < needs.checkpoints:
        return f"needs {needs.checkpoints} checkpoints of a run, but there is {slot.checkpoints}"
    wanted = " or ".join(f"{role}s" for role in needs.decisive or needs.roles or ("tensor",))
    return f"the checkpoints contain no {wanted}"
