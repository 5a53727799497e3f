"""What a check is: what it needs, what it looks at, what it says.

A check is one file in `headway/checks/` with one class. Its docstring is its documentation page;
`headway explain CODE` prints it. It keeps whatever it likes in its attributes: they survive a
resume by themselves (see `core/state.py`). It knows nothing of other checks, of files, or of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

from headway.core.bound import Bound
from headway.core.findings import Finding, Remedy, Severity, Where
from headway.core.records import EventRecord, Header, SetupRecord, StepRecord, TensorRecord
from headway.core.signals import family
from headway.core.state import decode, encode

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
    """The evidence a check cannot work without."""

    signals: tuple[str, ...] = ()
    """Scalars or columns that must all be there. `loss/*` means: at least one component."""
    any_of: tuple[str, ...] = ()
    """Scalars or columns of which at least one must be there."""
    kinds: tuple[type, ...] = (StepRecord,)
    """The record kinds the check looks at. A check that looks at several runs when any can come."""
    roles: tuple[str, ...] = ()
    """The roles of the tensors it looks at; none named: all."""
    topics: tuple[str, ...] = ()
    """The topics of the set-up facts it looks at; none named: all."""
    events: tuple[str, ...] = ()
    """The kinds of event it looks at; none named: all."""
    checkpoints: int = 0
    """How many checkpoints of a run it compares. 0: tensors are those of a running training."""
    decisive: tuple[str, ...] = ()
    """Of its roles those without which it cannot judge; none named: any will do."""
    span: int | None = None
    """The longest span (in steps) of a signal that the rule is still right for."""
    nonfinite: bool = False
    """NaN and infinities must survive in the signals."""

    def unmet(self, header: Header) -> str | None:
        """Why a check with these needs cannot run on this source; None when it can."""
        described = header.signals
        missing = [name for name in self.signals if not _present(name, described)]
        if missing:
            return f"needs {', '.join(missing)}, which this source does not have"
        if self.any_of and not any(_present(name, described) for name in self.any_of):
            return f"needs one of {', '.join(self.any_of)}, and this source has none of them"
        for name in (*self.signals, *self.any_of):
            signal = described.get(name)
            if signal is None:
                continue
            if self.span is not None and signal.span > self.span:
                return (
                    f"{name} is a {signal.fold} over {signal.span} steps; "
                    f"this rule is right for at most {self.span}"
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
    """What every check may read: the header in force, and where in the code things are done."""

    header: Header = field(default_factory=lambda: Header(source="nothing"))
    places: Mapping[str, Any] = field(default_factory=dict)
    """`backward`, `step`, `optimizer`, `clip`, …: the user's lines, where they have been seen."""

    @property
    def rows(self) -> bool:
        """Whether the records are rows of a finished log, see `Cadence`."""
        return self.header.cadence == "rows"

    def names(self, axis: str) -> Sequence[str]:
        """Names along an axis of the columns."""
        return self.header.names(axis)

    def name(self, axis: str, position: int) -> str:
        """One name along an axis; its position where the source gave no name."""
        names = self.header.names(axis)
        return names[position] if position < len(names) else f"{axis}[{position}]"


Observed: TypeAlias = StepRecord | SetupRecord | TensorRecord | EventRecord
"""The records a check may be handed; a header reaches it through `begin` and `context`."""


class Check:
    """Base of all checks: subclass, set the class attributes, write `observe`."""

    code: ClassVar[str]
    """`HD101`: fixed for ever, never reused."""
    name: ClassVar[str]
    """`nonfinite-loss`: names the disease, not the cure; equals the file's name."""
    severity: ClassVar[Severity] = Severity.WARNING
    """The default; a single finding may be milder, never worse."""
    status: ClassVar[Status] = "stable"
    """`preview` runs only when selected; `removed` never runs but keeps its page and its code."""
    summary: ClassVar[str]
    """One line for lists."""
    needs: ClassVar[Needs] = Needs()
    points_at: ClassVar[str | tuple[str, ...] | None] = None
    """The place (see `Context.places`) a finding points at if it names no line of its own; of
    several, the first that was seen."""
    explains: ClassVar[tuple[str, ...]] = ()
    """Codes of the findings this one can be the cause of. Every check of ours declares it."""
    yields_to: ClassVar[tuple[str, ...]] = ()
    """Of two findings that explain each other, the one named here is the cause."""
    once: ClassVar[Literal["segment", "run"] | None] = None
    """Report each subject once in a segment or in the run: the engine drops further findings."""
    bound: ClassVar[Bound | None] = None
    """The limit the live brake shall enforce before the step, where the check has one."""

    @dataclass(frozen=True)
    class Limits:
        """The numbers a user may change in `[tool.headway.limits.HDNNN]`."""

    def __init__(self, limits: Mapping[str, Any] | None = None) -> None:
        self.limits: Any = self.Limits(**(limits or {}))
        self.context = Context()
        if self.once is not None:
            self.reported: set[str] = set()
            """Subjects reported so far, kept by the engine."""
        self.start()

    def start(self) -> None:
        """Set up the attributes the check keeps. Called once, before any record."""

    def begin(self, header: Header) -> None:
        """A header came: the stream starts, or a new segment does."""

    def observe(self, record: Any) -> Iterable[Finding]:
        """Look at one record of the kinds in `needs`, and say what is wrong with it."""
        raise NotImplementedError

    def observe_row(self, record: Any) -> Iterable[Finding]:
        """Look at one row of a finished log; without an own rule, as at a step."""
        return self.observe(record)

    def finish(self) -> Iterable[Finding]:
        """The stream is over: say what could only be said now."""
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
        said = function if isinstance(function, str) else None
        return replace(where, file=file, line=line, function=said)

    def state_dict(self) -> dict[str, Any]:
        """Everything kept, as JSON."""
        return {name: encode(value) for name, value in self._kept()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; attributes of another version are ignored."""
        known = {name for name, _ in self._kept()}
        # Decoded before anything is set: a state that cannot be read leaves the check as it was.
        read = {name: decode(value) for name, value in state.items() if name in known}
        for name, value in read.items():
            setattr(self, name, value)

    def _kept(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self).items():
            if name not in ("limits", "context"):
                yield name, value
