"""From findings to causes: what is only a symptom of what.

Checks know nothing of each other. Here, and only here, stands which fault explains which. A finding is
a root cause if no other finding that could explain it began at the same time or earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.findings import Finding, Severity

NONFINITE = ("HD101", "HD102", "HD201", "HD301", "HD302", "HD303", "HD408", "HD701")
"""What a non-finite number becomes as it spreads."""
BAD_STEPS = ("HD103", "HD104", "HD115", "HD202", "HD207", "HD208", "HD308")
"""How steps that are too large look."""
NOTHING_MOVES = ("HD105", "HD205", "HD306", "HD307", "HD404")
"""How updates that do not happen look."""

EXPLAINS: dict[str, tuple[str, ...]] = {
    # a poisoned state or input explains every non-finite number downstream of it
    "HD501": (*NONFINITE, "HD103", "HD207", "HD313", "HD414"),
    "HD112": (*NONFINITE, "HD414"),
    "HD504": (*NONFINITE,),
    "HD301": ("HD101", "HD102", "HD201", "HD302", "HD303", "HD408", "HD414", "HD313"),
    "HD302": ("HD101", "HD102", "HD201", "HD301", "HD303"),
    "HD408": ("HD101", "HD102", "HD201", "HD301", "HD303"),
    "HD303": ("HD101", "HD102", "HD201", "HD301", "HD302", "HD408", "HD313", "HD414"),
    "HD311": (*NONFINITE, "HD313", "HD414"),
    "HD602": (*NONFINITE,),
    "HD101": ("HD201", "HD301", "HD302", "HD408", "HD313", "HD414", "HD104"),
    "HD201": ("HD301", "HD408", "HD101", "HD313", "HD414"),
    "HD102": ("HD201", "HD101"),
    # steps too large
    "HD206": (*BAD_STEPS, "HD101", "HD201", "HD209"),
    "HD209": ("HD207", "HD208", "HD308"),
    "HD403": (*BAD_STEPS, *NONFINITE, "HD304"),
    "HD413": ("HD104", "HD403"),
    "HD116": ("HD202", "HD207", "HD208", "HD308", "HD403"),
    "HD316": ("HD202", "HD203", "HD304", "HD305", "HD113", "HD105"),
    "HD202": ("HD104", "HD101", "HD201", "HD208", "HD207", "HD308"),
    "HD308": ("HD104", "HD202", "HD101", "HD201"),
    "HD104": ("HD103", "HD207"),
    # nothing moves
    "HD108": (*NOTHING_MOVES, "HD204"),
    "HD905": (*NOTHING_MOVES, "HD108", "HD204"),
    "HD410": (*NOTHING_MOVES, "HD204"),
    "HD401": ("HD306", "HD105", "HD307"),
    "HD402": ("HD306", "HD105", "HD401", "HD204"),
    "HD904": ("HD402", "HD401", "HD306", "HD105"),
    "HD204": ("HD306", "HD105"),
    "HD310": ("HD306", "HD307", "HD105"),
    "HD309": ("HD310", "HD312", "HD311", "HD313", "HD101", "HD201", "HD301"),
    "HD312": ("HD205", "HD306", "HD307"),
    "HD313": ("HD414", "HD105", "HD306"),
    "HD314": ("HD307", "HD105", "HD208"),
    "HD405": ("HD105", "HD306", "HD307"),
    "HD404": ("HD105", "HD307"),
    # memory
    "HD803": ("HD801", "HD802", "HD804"),
    "HD801": ("HD804",),
}
"""Cause → symptoms it can explain."""

SLACK = 3
"""A cause may be seen this many steps after its symptom: scans follow the first alarm."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding that nothing else explains, with the findings it does explain."""

    root: Finding
    symptoms: tuple[Finding, ...]

    @property
    def code(self) -> str:
        return self.root.code

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def message(self) -> str:
        return self.root.message

    def to_json(self) -> dict[str, Any]:
        codes = list(dict.fromkeys(item.code for item in (self.root, *self.symptoms)))
        return {"code": self.code, "name": self.name, "message": self.message, "findings": codes}


def diagnose(findings: Sequence[Finding]) -> list[Cause]:
    """The causes behind the findings, the most likely first."""
    roots = [item for item in findings if not any(_explains(other, item) for other in findings)]
    # Two findings may explain each other (a NaN loss and a NaN gradient): the first of them stands.
    roots = roots or _break_circle(findings)
    taken: set[int] = set()
    causes = []
    for root in sorted(roots, key=_weight(findings)):
        symptoms = [
            item
            for item in findings
            if item is not root
            and id(item) not in taken
            and not any(item is other for other in roots)
            and _reaches(root, item, findings)
        ]
        taken.update(id(item) for item in symptoms)
        causes.append(Cause(root, tuple(symptoms)))
    return causes


def _explains(cause: Finding, symptom: Finding) -> bool:
    if cause is symptom or symptom.code not in EXPLAINS.get(cause.code, ()):
        return False
    if cause.severity < Severity.WARNING <= symptom.severity:
        return False  # a mild remark does not explain a broken run
    if not _in_time(cause, symptom):
        return False
    mutual = cause.code in EXPLAINS.get(symptom.code, ()) and _in_time(symptom, cause)
    return not mutual or _stands_first(cause, symptom)


def _in_time(cause: Finding, symptom: Finding) -> bool:
    if cause.segment != symptom.segment:
        return cause.segment < symptom.segment
    if cause.step is None or symptom.step is None:
        return True
    return cause.step <= symptom.step + SLACK


def _stands_first(one: Finding, other: Finding) -> bool:
    """Between two that could explain each other: state before its effects, else the table's order."""
    order = list(EXPLAINS)
    return order.index(one.code) < order.index(other.code)


def _break_circle(findings: Sequence[Finding]) -> list[Finding]:
    return [min(findings, key=lambda item: (item.order, item.code))] if findings else []


def _reaches(root: Finding, symptom: Finding, findings: Sequence[Finding]) -> bool:
    """Whether the root explains the symptom, directly or through findings in between."""
    frontier, seen = [root], {id(root)}
    while frontier:
        current = frontier.pop()
        for item in findings:
            if id(item) not in seen and _explains(current, item):
                if item is symptom:
                    return True
                seen.add(id(item))
                frontier.append(item)
    return False


def _weight(findings: Sequence[Finding]) -> Any:
    def key(root: Finding) -> tuple[int, int, tuple[int, int], str]:
        explained = sum(_reaches(root, item, findings) for item in findings if item is not root)
        return (-int(root.severity), -explained, root.order, root.code)

    return key
