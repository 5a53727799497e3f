"""Lines in which a script itself says that a number was not finite.

    Warning: NaN gradient detected at step 92261
    ERROR: Invalid loss at step 92261: nan

A script that skips such steps logs nothing else of them: without these lines its log looks well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headway.sources.log.names import named

_CLUES = ("nan", "NaN", "NAN", "inf", "Inf", "INF", "nvalid", "inite")
_BAD = r"(?:invalid|non-?finite|infinite|(?:nan|inf)(?:\s?(?:/|or|and)\s?(?:nan|inf))?)"
_COMPLAINT = re.compile(
    r"^\W{0,6}(?:(?:warn(?:ing)?|error|critical|fatal)\b\W{1,4})?(?:(?:found|detected|got)\s)?"
    rf"(?:an?\s)?{_BAD}\s(?P<what>loss(?:es)?|grad(?:ient)?s?)\b.{{0,60}}?"
    r"\b(?:step|iter(?:ation)?)\s?[#:=]?\s?(?P<step>\d{1,12})\b",
    re.IGNORECASE,
)
_ELSE = {"loss": "cost", "grad_norm": "global_gradient_norm"}
"""What it is called where the log has no such number: a name that gives way to any other."""


def complaint(line: str) -> tuple[str, int] | None:
    """(`loss` or `grad_norm`, step), where a line complains."""
    if not any(clue in line for clue in _CLUES):
        return None
    found = _COMPLAINT.match(line)
    if found is None:
        return None
    name = "loss" if found["what"].lower().startswith("loss") else "grad_norm"
    return name, int(found["step"])


def column(ours: str, columns: Iterable[str]) -> str:
    """The log's own name for a number of ours, the best of several."""
    known = [(name.rank, raw) for raw in columns if (name := named(raw)) and name.name == ours]
    return min(known)[1] if known else _ELSE[ours]
