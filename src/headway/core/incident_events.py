"""Reads incident events (a bad step that was run again) and adds their explanation to the findings
about that step.

The data of the event come from `explain/explanation.py`, but a log may contain anything, so every
field is validated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.core.check import Check
from headway.core.findings import Finding, Remedy, SourceEdit, Where
from headway.core.records import EventRecord

INCIDENT = "incident"
"""The kind of event, and the name of the signal that announces such events."""

TRACED = "traced-origin"
"""The kind of event for an op that made a non-finite value in a step that was not bad, or that a
GradScaler skipped."""

SYMPTOMS = ("HD101", "HD103", "HD201", "HD207", "HD303", "HD311", "HD602")
"""Findings about a bad step, whose message is extended by the result of the re-run."""
CODE_OF_KIND = {
    "poisoned-batch": "HD501",
    "poisoned-weight": "HD301",
    "poisoned-buffer": "HD302",
}
"""Findings about data that is already non-finite when the step starts."""
LASTING = frozenset(("HD201", "HD313", "HD414"))
"""Findings about many steps that a GradScaler skips: the last origin before them explains them."""
_AT_AN_EDGE = "sqrt-at-zero pow-singular norm-at-zero acos-at-one std-singular"
_AT_ZERO = "division-by-zero zero-over-zero log-of-zero"
INFINITE_SLOPES = frozenset(f"{_AT_AN_EDGE} {_AT_ZERO}".split())
"""Kinds of origins that are infinite at their input, in backward too, whatever the loss scale."""
CODE_OF_ROLE = {"batch": "HD501", "data": "HD501", "weight": "HD301", "buffer": "HD302"}
"""The same by what brought the value into the step."""


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """The parts of an explanation that findings use."""

    step: int
    segment: int
    nature: str
    headline: str
    origin: Mapping[str, Any]
    """The first origin; empty if there is none."""
    spike: Mapping[str, Any]
    trials: tuple[Mapping[str, Any], ...]
    samples: tuple[Any, ...]
    guilt: str
    rank: int | None
    bad_step: bool = True
    """Whether the update of the step was skipped because of it."""

    @property
    def rows(self) -> list[int]:
        rows = self.origin.get("rows") or self.spike.get("rows") or ()
        return [row for row in _list(rows) if isinstance(row, int)]

    @property
    def has_infinite_slope(self) -> bool:
        """Whether the derivative of an op is infinite at its input."""
        origin = self.origin
        return origin.get("phase") == "backward" and origin.get("kind") in INFINITE_SLOPES

    def where(self) -> Where:
        """The known ones of file, line, op, module, sample and rank."""
        place = _dict(self.origin.get("place"))
        layers = _list(self.spike.get("layers"))
        module = self.origin.get("module") or (layers[0] if layers else None)
        return Where(
            file=_text(place.get("file")),
            line=_number(place.get("line")),
            function=_text(place.get("function")),
            module=_text(module) or None,
            op=_text(self.origin.get("op")),
            rank=self.rank,
            sample=self.rows[0] if self.rows else None,
        )

    def remedies(self) -> Iterator[Remedy]:
        """The remedies that were tested, and those that were not."""
        for trial in self.trials:
            text, tried = _text(trial.get("text")), trial.get("tried")
            if text:
                tested = tried in ("cured", "not cured")
                yield Remedy(
                    text,
                    tested=tested,
                    cured=tried == "cured" if tested else None,
                    edits=_edits(trial),
                    same_loss=bool(_edits(trial)),
                )

    def evidence(self) -> dict[str, Any]:
        """The evidence of the incident for a finding."""
        origin = self.origin
        found = {
            "why": self.headline,
            "nature": self.nature,
            "guilt": None if self.guilt == "unknown" else self.guilt,
            "kind": origin.get("kind"),
            "phase": origin.get("phase"),
            "source": _dict(origin.get("place")).get("source"),
            "samples": self.rows or None,
            "data_set": list(self.samples) or None,
            "component": origin.get("component") or self.spike.get("component"),
            "reached": _list(origin.get("reached"))[:20] or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def incident_finding(
    check: Check, record: EventRecord, incident: IncidentSummary, **more: Any
) -> Finding:
    """A finding whose whole evidence is the incident."""
    origin = incident.origin
    return check.find(
        record,
        incident.headline,
        subject=f"{origin.get('module')} {origin.get('op')}",
        where=incident.where(),
        remedies=[*incident.remedies()],
        **more,
        **incident.evidence(),
    )


def read_incident(event: EventRecord) -> IncidentSummary | None:
    """The incident of an event; None if it is another kind of event."""
    return _read(event) if event.kind == INCIDENT else None


def read_traced(event: EventRecord) -> IncidentSummary | None:
    """The origin of non-finite values in a step that was not bad."""
    return replace(_read(event), bad_step=False) if event.kind == TRACED else None


def _read(event: EventRecord) -> IncidentSummary:
    data = event.data
    origins = _list(data.get("origins"))
    return IncidentSummary(
        step=event.step,
        segment=event.segment,
        nature=_text(data.get("nature")) or "unknown",
        headline=_text(data.get("headline")) or "",
        origin=_dict(origins[0]) if origins else {},
        spike=_dict(data.get("spike")),
        trials=tuple(_dict(trial) for trial in _list(data.get("trials"))),
        samples=tuple(_list(data.get("samples"))),
        guilt=_text(data.get("guilt")) or "unknown",
        rank=_number(data.get("rank")),
    )


def incident_concerns(incident: IncidentSummary, finding: Finding) -> bool:
    """Whether a finding is about the step that was run again, and explained by it."""
    if finding.segment != incident.segment:
        return False
    if not incident.bad_step and finding.code in LASTING:
        return finding.step is not None and finding.step >= incident.step
    if finding.step != incident.step:
        return False
    origin = incident.origin
    if not incident.bad_step:
        return finding.code in CODE_OF_ROLE.values()
    kind, through = str(origin.get("kind")), str(origin.get("through"))
    codes = [*SYMPTOMS, CODE_OF_KIND.get(kind), CODE_OF_ROLE.get(through)]
    if origin.get("output") is not None and origin.get("phase") == "forward":
        codes.append(CODE_OF_ROLE["batch"])  # bad inputs of a module are the result of the op
    return finding.code in codes


def pick_headline_code(codes: Iterable[str]) -> str | None:
    """Among several findings about one step, the code of the one whose message gets the reason."""
    found = set(codes)
    return next((code for code in SYMPTOMS if code in found), None)


def is_explained(finding: Finding) -> bool:
    """Whether the origin of its step is known."""
    return "why" in finding.evidence and finding.evidence.get("nature") != "unknown"


def explain_finding(finding: Finding, incident: IncidentSummary, *, aloud: bool) -> Finding:
    """The finding with the location, the reason and the tested remedies of the incident.

    `aloud`: add the reason to its message.
    """
    again = "why" in finding.evidence and not incident.origin
    if is_explained(finding) or again or not incident.headline:
        return finding
    computed = bool(finding.evidence.get("batch_is_finite"))  # HD501: the batch is not to blame
    known, found = finding.where, incident.where()
    remedies = [*incident.remedies()]
    # If a remedy fixed the step, general advice for the symptom is not needed.
    if finding.code not in SYMPTOMS or not any(remedy.cured for remedy in remedies):
        texts = {remedy.text for remedy in remedies}
        remedies += [item for item in finding.remedies if item.text not in texts]
    where = Where(
        file=found.file or known.file,
        line=found.line or known.line,
        function=found.function or known.function,
        module=found.module or known.module,
        op=found.op or known.op,
        rank=known.rank if found.rank is None else found.rank,
        sample=known.sample if found.sample is None else found.sample,
    )
    return replace(
        finding,
        message=_add_reason(finding, incident.headline) if aloud or computed else finding.message,
        where=where,
        evidence={**finding.evidence, **incident.evidence()},
        remedies=tuple(remedies),
    )


def add_trials(finding: Finding, incident: IncidentSummary) -> Finding:
    """An explained finding with the remedies that were tested on a later step of the same fault."""
    found = incident.where()
    same = (found.file, found.line, found.op) == (
        finding.where.file,
        finding.where.line,
        finding.where.op,
    )
    tested = [remedy for remedy in incident.remedies() if remedy.tested]
    if not same or found.line is None or any(remedy.tested for remedy in finding.remedies):
        return finding
    texts = {remedy.text for remedy in tested}
    general = not any(remedy.cured for remedy in tested) or finding.code not in SYMPTOMS
    others = [item for item in finding.remedies if general and item.text not in texts]
    return replace(finding, remedies=(*tested, *others))


def _edits(trial: Mapping[str, Any]) -> tuple[SourceEdit, ...]:
    edits = [SourceEdit.from_dict(item) for item in _list(trial.get("edits"))]
    return tuple(edit for edit in edits if edit is not None) if all(edits) else ()


def _add_reason(finding: Finding, headline: str) -> str:
    """The message with the reason, in place of one that says that it is not known."""
    earlier = finding.evidence.get("why")
    message = finding.message
    if isinstance(earlier, str):
        message = message.removesuffix(f". {earlier}")
    return f"{message}. {headline}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
