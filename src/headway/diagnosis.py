"""Groups findings into causes and their symptoms.

Each check declares which findings it `explains`. A finding is a root cause if no other finding that
could explain it began at the same time or earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from headway import registry
from headway.core.ending_facts import ends_run
from headway.core.episodes import fault_keys, merge_faults
from headway.core.findings import Finding, Severity

SLACK = 3
"""A cause may be found this many steps after its symptom: scans follow the first alarm."""
PROMPT = {
    ("HD308", "HD104"),
    ("HD202", "HD104"),
    ("HD101", "HD104"),
    ("HD101", "HD202"),
}
"""These findings are placed at the onset: an update cannot affect a loss computed before it."""
STATE = ("HD301", "HD302", "HD408", "HD701")
"""Traces of a bad update in weights, buffers and moments; a skipped update leaves none."""
RAISED_FOR = ("HD101", "HD201", "HD301", "HD302", "HD303", "HD313", "HD408", "HD501", "HD602")
"""A check of the script or of its framework may have raised because of these, some steps later."""
SAME_STEP = {("HD505", "HD911"), ("HD505", "HD912")}
"""A label out of range raises at once; what raises at another step has another cause."""
SAME_PART = {("HD106", "HD107")}
"""A dead component explains that it is dominated, not that another one is."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding that nothing else explains, with the findings it does explain."""

    root: Finding
    symptoms: tuple[Finding, ...]

    def __str__(self) -> str:
        return str(self.root)

    @property
    def code(self) -> str:
        return self.root.code

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def message(self) -> str:
        return self.root.message

    def to_dict(self) -> dict[str, Any]:
        codes = list(dict.fromkeys(item.code for item in (self.root, *self.symptoms)))
        return {"code": self.code, "name": self.name, "message": self.message, "findings": codes}


def diagnose(findings: Sequence[Finding]) -> list[Cause]:
    """The causes behind the findings, the most likely first. Each finding is in one of them."""
    ordered = sorted(findings, key=_sort_key)
    explains = _edges(ordered, _held_steps(ordered))
    groups = {root: _reached(root, explains) for root in _roots(explains)}

    last = max((item.segment for item in ordered), default=0)
    ended = [item.step or 0 for item in ordered if _ended_run(item, last)]

    def weight(root: int) -> tuple[bool, int, bool, int, int]:
        finding = ordered[root]
        # Findings about the tool or the log (HD0) do not cause anything in the run.
        aside = finding.code.startswith("HD0")
        # What ended the run comes before faults of earlier steps, which it went on with.
        # A step that raised may have been counted, or not.
        at_end = finding.segment == last and any(
            abs((finding.step or 0) - end) <= 1 for end in ended
        )
        behind = not at_end and finding.code not in RAISED_FOR
        return (aside, -int(finding.severity), behind, -len(groups[root]), root)

    taken: set[int] = set()
    causes = []
    for root in sorted(groups, key=weight):
        symptoms = sorted(groups[root] - taken - {root})
        taken.update(symptoms)
        causes.append(Cause(ordered[root], tuple(ordered[at] for at in symptoms)))
    return causes


def merge_repeats(
    findings: Sequence[Finding], causes: Sequence[Cause]
) -> tuple[list[Finding], list[Cause]]:
    """The findings and causes with one entry for each fault, however often it occurred."""
    ordered = sorted(findings, key=lambda finding: finding.order)
    keys = fault_keys(ordered)
    groups: dict[Any, list[Finding]] = {}
    for key, finding in zip(keys, ordered, strict=True):
        groups.setdefault(key, []).append(finding)
    merged = {key: merge_faults(alike) for key, alike in groups.items()}
    entry = {id(finding): merged[key] for key, finding in zip(keys, ordered, strict=True)}
    symptoms: dict[int, list[Finding]] = {}
    roots: dict[int, Finding] = {}
    for cause in causes:
        root = entry[id(cause.root)]
        roots.setdefault(id(root), root)
        symptoms.setdefault(id(root), []).extend(entry[id(item)] for item in cause.symptoms)
    taken = set(roots)
    kept = []
    for at, root in roots.items():
        own = []
        for item in symptoms[at]:
            if id(item) not in taken:
                taken.add(id(item))
                own.append(item)
        kept.append(Cause(root, tuple(own)))
    return list(merged.values()), kept


def _ended_run(finding: Finding, last_segment: int) -> bool:
    check = registry.find(finding.code)
    declared = check is not None and check.ends_run
    return declared and finding.last_segment == last_segment and ends_run(finding, declared=True)


def _sort_key(finding: Finding) -> tuple[tuple[int, int], str, str]:
    return (finding.order, finding.code, finding.subject)


def _held_steps(ordered: Sequence[Finding]) -> set[tuple[int, int | None]]:
    """Segment and step of the updates that the guard skipped."""
    return {(item.segment, item.step) for item in ordered if item.evidence.get("held") is True}


def _edges(ordered: Sequence[Finding], held: set[tuple[int, int | None]]) -> list[list[int]]:
    """For each finding, the positions of those it explains."""
    positions: dict[str, list[int]] = {}
    for at, finding in enumerate(ordered):
        positions.setdefault(finding.code, []).append(at)
    return [
        [
            at
            for code in _declared(finding.code, "explains")
            for at in positions.get(code, ())
            if _explains(finding, ordered[at]) and not _had_passed(finding, ordered[at], held)
        ]
        for finding in ordered
    ]


def _roots(explains: Sequence[Sequence[int]]) -> list[int]:
    """The findings that nothing explains; for a cycle that nothing else explains, the earliest."""
    explained_by: list[list[int]] = [[] for _ in explains]
    for cause, symptoms in enumerate(explains):
        for symptom in symptoms:
            explained_by[symptom].append(cause)
    roots = []
    rest = set(range(len(explains)))
    while rest:
        root = min(rest)
        # Follow explanations upward until only a cycle remains.
        while above := _reached(root, explained_by) - _reached(root, explains):
            root = min(above)
        roots.append(root)
        rest -= _reached(root, explains)
    return roots


def _reached(start: int, edges: Sequence[Sequence[int]]) -> set[int]:
    """Everything reachable from `start`, including it."""
    frontier, seen = [start], {start}
    while frontier:
        for at in edges[frontier.pop()]:
            if at not in seen:
                seen.add(at)
                frontier.append(at)
    return seen


def _explains(cause: Finding, symptom: Finding) -> bool:
    if not _could_explain(cause, symptom):
        return False
    # Two may explain each other (a NaN loss and a NaN gradient): one of them yields to the other.
    mutual = _could_explain(symptom, cause)
    return not mutual or symptom.code not in _declared(cause.code, "yields_to")


def _had_passed(cause: Finding, symptom: Finding, held: set[tuple[int, int | None]]) -> bool:
    """Whether the cause ended without consequences long before the symptom began."""
    if cause.segment != symptom.segment or cause.step is None or symptom.step is None:
        return False
    evidence = cause.evidence
    if evidence.get("recovered") is True:
        rows, span = evidence.get("rows"), evidence.get("span")
        lasted = rows * span if isinstance(rows, int) and isinstance(span, int) else 0
        return symptom.step > cause.step + lasted + SLACK
    if (cause.segment, cause.step) in held and symptom.code in STATE:
        return symptom.step > cause.step + SLACK
    return False


@cache
def _declared(code: str, attribute: str) -> tuple[str, ...]:
    """A declaration of the check with this code; empty for an unknown code."""
    check = registry.find(code)
    return () if check is None else getattr(check, attribute)


def _could_explain(cause: Finding, symptom: Finding) -> bool:
    if symptom.code not in _declared(cause.code, "explains"):
        return False
    if cause.severity < Severity.WARNING <= symptom.severity:
        return False  # information does not explain a broken run
    if (cause.code, symptom.code) in SAME_STEP and cause.step != symptom.step:
        return False
    if (cause.code, symptom.code) in SAME_PART:
        dominated = symptom.evidence.get("next")
        if dominated is not None and dominated != cause.subject:
            return False
    return _in_time(cause, symptom)


def _in_time(cause: Finding, symptom: Finding) -> bool:
    if cause.segment != symptom.segment:
        return cause.segment < symptom.segment
    if cause.step is None or symptom.step is None:
        return True
    slack = 0 if (cause.code, symptom.code) in PROMPT else SLACK
    began = cause.evidence.get("began_step")  # of a fault that takes a while to be certain
    return (began if isinstance(began, int) else cause.step) <= symptom.step + slack
