"""From findings to causes: what is only a symptom of what.

Checks know nothing of each other. Here, and only here, stands which fault explains which. A finding
is a root cause if no other finding that could explain it began at the same time or earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.findings import Finding, Severity

NONFINITE = ("HD101", "HD102", "HD201", "HD301", "HD302", "HD303", "HD408", "HD701")
"""What a non-finite number becomes as it spreads."""
BORN = (*NONFINITE, "HD602")
"""The same, and the rank it was born on: where, which is less than why and more than what."""
BAD_STEPS = ("HD103", "HD104", "HD115", "HD202", "HD207", "HD208", "HD308")
"""How steps that are too large look."""
NOTHING_MOVES = ("HD105", "HD205", "HD306", "HD307", "HD404")
"""How updates that do not happen look."""
NOTHING_LEARNED = (*NOTHING_MOVES, "HD113", "HD203", "HD509", "HD512")
"""How a loss that asks for the wrong thing looks."""

EXPLAINS: dict[str, tuple[str, ...]] = {
    # a poisoned state or input explains every non-finite number downstream of it
    "HD501": (*BORN, "HD103", "HD207", "HD313", "HD414"),
    "HD112": (*BORN, "HD103", "HD207", "HD313", "HD414"),
    "HD504": (*BORN,),
    # a saved state says the same of its tensors, and names them all
    "HD701": ("HD301", "HD302", "HD408"),
    "HD301": ("HD101", "HD102", "HD201", "HD302", "HD303", "HD408", "HD414", "HD313", "HD602"),
    "HD302": ("HD101", "HD102", "HD201", "HD301", "HD303", "HD602"),
    "HD408": ("HD101", "HD102", "HD201", "HD301", "HD303", "HD602"),
    "HD303": ("HD101", "HD102", "HD201", "HD301", "HD302", "HD408", "HD313", "HD414", "HD602"),
    "HD311": (*BORN, "HD313", "HD414"),
    "HD602": (*NONFINITE, "HD313", "HD414"),
    "HD101": ("HD201", "HD301", "HD302", "HD408", "HD313", "HD414", "HD104", "HD701"),
    # a scaler at its floor says more: gradients are not finite at any scale, step after step
    "HD313": ("HD201", "HD414", "HD105", "HD306"),
    "HD201": ("HD301", "HD408", "HD101", "HD414", "HD701"),
    "HD102": ("HD201", "HD101", "HD701"),
    # steps too large
    "HD206": (*BAD_STEPS, "HD101", "HD201", "HD209", "HD602", "HD403", "HD512", "HD105"),
    "HD209": ("HD207", "HD208", "HD308", "HD202", "HD403", "HD512", "HD105"),
    "HD403": (
        *BAD_STEPS,
        *BORN,
        "HD304",
        "HD305",
        "HD317",
        "HD318",
        "HD105",
        "HD205",
        "HD414",
        "HD509",
        "HD512",
        "HD404",
    ),
    "HD413": (
        *BAD_STEPS,
        *BORN,
        "HD403",
        "HD105",
        "HD113",
        "HD317",
        "HD318",
        "HD512",
        "HD404",
        "HD509",
    ),
    "HD116": (*BAD_STEPS, *BORN, "HD403", "HD304", "HD305", "HD512", "HD105", "HD404", "HD509"),
    "HD316": (
        *BAD_STEPS,
        *NOTHING_MOVES,
        "HD101",
        "HD113",
        "HD201",
        "HD203",
        "HD303",
        "HD304",
        "HD305",
        "HD311",
        "HD317",
        "HD318",
        "HD403",
        "HD509",
        "HD512",
    ),
    "HD411": (*BORN, "HD103", "HD207", "HD308"),
    "HD412": ("HD105", "HD203", "HD205", "HD307", "HD509", "HD404", "HD308", "HD512", "HD115"),
    "HD202": ("HD104", "HD101", "HD201", "HD208", "HD207", "HD308", "HD602", "HD509", "HD403"),
    "HD308": ("HD104", "HD202", "HD101", "HD201", "HD602", "HD509"),
    "HD104": (
        "HD103",
        "HD207",
        "HD208",
        "HD202",
        "HD304",
        "HD305",
        "HD308",
        "HD101",
        "HD102",
        "HD201",
    ),
    "HD115": ("HD103", "HD104", "HD207"),
    # a loss that left its level first, on bad batches say, makes the updates that follow
    # the loss asks for something else
    "HD111": (*NOTHING_LEARNED, "HD104", "HD110", "HD114", "HD202", "HD304", "HD305", "HD308"),
    "HD110": (*NOTHING_LEARNED,),
    "HD109": (*NOTHING_LEARNED, "HD115"),
    "HD114": (*NOTHING_LEARNED, "HD104", "HD304", "HD305", "HD511"),
    # nothing moves
    "HD108": (*NOTHING_MOVES, "HD106", "HD204", "HD509"),
    "HD905": (*NOTHING_MOVES, "HD108", "HD204"),
    "HD410": (
        *NOTHING_MOVES,
        "HD204",
        "HD409",
        "HD415",
        "HD104",
        "HD115",
        "HD108",
        "HD905",
        "HD512",
        "HD509",
    ),
    "HD401": (
        "HD306",
        "HD105",
        "HD307",
        "HD404",
        "HD403",
        "HD115",
        "HD512",
        "HD509",
        "HD415",
        "HD205",
    ),
    "HD402": (
        "HD306",
        "HD105",
        "HD404",
        "HD205",
        "HD401",
        "HD204",
        "HD403",
        "HD407",
        "HD413",
        "HD512",
        "HD509",
        "HD115",
        "HD415",
    ),
    "HD904": (
        *NOTHING_MOVES,
        "HD402",
        "HD401",
        "HD204",
        "HD403",
        "HD413",
        "HD512",
        "HD509",
        "HD115",
        "HD415",
    ),
    "HD106": ("HD204", "HD205", "HD306", "HD107"),
    "HD204": ("HD306", "HD105"),
    "HD310": (*NOTHING_MOVES, "HD512", "HD509", "HD115"),
    "HD309": (
        *NOTHING_MOVES,
        *BORN,
        "HD310",
        "HD312",
        "HD311",
        "HD313",
        "HD411",
        "HD315",
        "HD414",
        "HD512",
        "HD509",
        "HD115",
    ),
    "HD312": ("HD205", "HD306", "HD307"),
    "HD314": (*NOTHING_MOVES, "HD208", "HD512", "HD509", "HD115"),
    "HD405": (*NOTHING_MOVES, "HD705", "HD415", "HD512", "HD509", "HD115"),
    "HD404": ("HD105", "HD307"),
    "HD208": ("HD105", "HD307", "HD404"),
    # structure, modes and activations
    "HD906": (*NOTHING_MOVES, "HD401", "HD402", "HD204", "HD512", "HD509", "HD115", "HD415"),
    "HD902": (
        "HD103",
        "HD104",
        "HD105",
        "HD113",
        "HD202",
        "HD203",
        "HD404",
        "HD903",
        "HD512",
        "HD509",
        "HD115",
    ),
    "HD909": ("HD103", "HD105", "HD115", "HD207", "HD304", "HD404", "HD509", "HD512"),
    "HD908": ("HD105", "HD404", "HD512", "HD509", "HD115", "HD203"),
    "HD304": (*NOTHING_MOVES, "HD203", "HD204", "HD509", "HD415", "HD512", "HD115"),
    "HD305": (*NOTHING_MOVES, "HD203", "HD509", "HD512", "HD115"),
    "HD317": ("HD103", "HD104", "HD115", "HD202", "HD203", "HD207", "HD208", "HD308"),
    "HD318": ("HD103", "HD104", "HD202", "HD207", "HD208"),
    # what a resume, a freeze or a loading did
    # a weight that is finite and absurd makes the numbers that are not
    "HD704": ("HD701", "HD301"),
    "HD705": ("HD105", "HD404"),
    "HD706": ("HD113", "HD105", "HD404", "HD409", "HD512", "HD509", "HD115"),
    "HD407": ("HD103", "HD207", "HD406"),
    "HD406": ("HD103", "HD104", "HD202", "HD207", "HD208", "HD308", "HD403"),
    "HD409": ("HD306", "HD415"),
    "HD415": ("HD306", "HD205", "HD204"),
    "HD707": ("HD204", "HD306"),
    "HD315": ("HD312", "HD313", "HD414"),
    "HD807": ("HD804", "HD805"),
    # a component that is dead leaves its branch without a gradient; so do dead units
    "HD205": ("HD306", "HD307"),
    "HD107": ("HD105", "HD512"),
    # the data
    "HD502": (
        *BAD_STEPS,
        "HD105",
        "HD113",
        "HD203",
        "HD304",
        "HD305",
        "HD403",
        "HD404",
        "HD512",
        "HD509",
    ),
    "HD503": ("HD105", "HD306", "HD509", "HD512", "HD404", "HD115"),
    "HD506": ("HD105", "HD512"),
    "HD507": ("HD103", "HD115"),
    "HD510": ("HD103", "HD115", "HD207", "HD512", "HD105", "HD404", "HD509"),
    "HD511": (
        *BAD_STEPS,
        "HD105",
        "HD107",
        "HD113",
        "HD114",
        "HD203",
        "HD403",
        "HD404",
        "HD512",
        "HD509",
    ),
    "HD512": ("HD105", "HD115", "HD404"),
    # many ranks
    "HD605": ("HD601",),
    # what depends on what
    "HD210": ("HD105", "HD404", "HD115", "HD117", "HD512", "HD509"),
    "HD509": ("HD105", "HD404"),
    "HD203": ("HD509",),
    "HD901": ("HD204", "HD306"),
    "HD907": ("HD204", "HD306"),
    # memory
    "HD803": ("HD801", "HD802", "HD804"),
    "HD801": ("HD804",),
}
"""Cause → symptoms it can explain. State stands before its effects: see `_explains`."""
_RANK = {code: rank for rank, code in enumerate(EXPLAINS)}

SLACK = 3
"""A cause may be seen this many steps after its symptom: scans follow the first alarm."""
PROMPT = {
    ("HD308", "HD104"),
    ("HD202", "HD104"),
    ("HD101", "HD104"),
    ("HD101", "HD202"),
}
"""Both are dated by their beginning: an update has no effect on a loss that was computed before."""
STATE = ("HD301", "HD302", "HD408", "HD701")
"""What a bad update leaves in weights, buffers and moments; one that was held back leaves none."""
SAME_PART = {("HD106", "HD107")}
"""A dead part explains that it is dominated, not that a third one is."""


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

    def to_dict(self) -> dict[str, Any]:
        codes = list(dict.fromkeys(item.code for item in (self.root, *self.symptoms)))
        return {"code": self.code, "name": self.name, "message": self.message, "findings": codes}


def diagnose(findings: Sequence[Finding]) -> list[Cause]:
    """The causes behind the findings, the most likely first. Each finding stands in one of them."""
    told = sorted(findings, key=_place)
    explains = _edges(told, _held(told))
    groups = {root: _reached(root, explains) for root in _roots(explains)}

    def weight(root: int) -> tuple[bool, int, int, int]:
        # What is said of the tool or of the log (HD0) is no cause of anything in the run.
        aside = told[root].code.startswith("HD0")
        return (aside, -int(told[root].severity), -len(groups[root]), root)

    taken: set[int] = set()
    causes = []
    for root in sorted(groups, key=weight):
        symptoms = sorted(groups[root] - taken - {root})
        taken.update(symptoms)
        causes.append(Cause(told[root], tuple(told[at] for at in symptoms)))
    return causes


def _place(finding: Finding) -> tuple[tuple[int, int], str, str]:
    return (finding.order, finding.code, finding.subject)


def _held(told: Sequence[Finding]) -> set[tuple[int, int | None]]:
    """The places of the steps whose update the guard held back."""
    return {(item.segment, item.step) for item in told if item.evidence.get("held") is True}


def _edges(told: Sequence[Finding], held: set[tuple[int, int | None]]) -> list[list[int]]:
    """For each finding, the positions of those it explains."""
    positions: dict[str, list[int]] = {}
    for at, finding in enumerate(told):
        positions.setdefault(finding.code, []).append(at)
    return [
        [
            at
            for code in EXPLAINS.get(finding.code, ())
            for at in positions.get(code, ())
            if _explains(finding, told[at]) and not _was_over(finding, told[at], held)
        ]
        for finding in told
    ]


def _roots(explains: Sequence[Sequence[int]]) -> list[int]:
    """The findings nothing explains; of a circle nothing else explains, the earliest."""
    explained_by: list[list[int]] = [[] for _ in explains]
    for cause, symptoms in enumerate(explains):
        for symptom in symptoms:
            explained_by[symptom].append(cause)
    roots = []
    rest = set(range(len(explains)))
    while rest:
        root = min(rest)
        # Go up as long as something above is not below as well.
        while above := _reached(root, explained_by) - _reached(root, explains):
            root = min(above)
        roots.append(root)
        rest -= _reached(root, explains)
    return roots


def _reached(start: int, edges: Sequence[Sequence[int]]) -> set[int]:
    """Where the edges lead from here, the start included."""
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
    # Two may explain each other (a NaN loss and a NaN gradient): the table says which stands first.
    mutual = _could_explain(symptom, cause)
    return not mutual or _RANK[cause.code] < _RANK[symptom.code]


def _was_over(cause: Finding, symptom: Finding, held: set[tuple[int, int | None]]) -> bool:
    """Whether the cause had passed, and left nothing behind, long before the symptom began."""
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


def _could_explain(cause: Finding, symptom: Finding) -> bool:
    if symptom.code not in EXPLAINS.get(cause.code, ()):
        return False
    if cause.severity < Severity.WARNING <= symptom.severity:
        return False  # a mild remark does not explain a broken run
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
    return cause.step <= symptom.step + slack
