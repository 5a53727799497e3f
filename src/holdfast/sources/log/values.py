"""Numbers as stores write them: the many spellings of what is not finite, steps that are whole."""

from __future__ import annotations

import math
import re
from typing import Any

SPELLED = {
    "nan": math.nan,
    "-nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}
"""JSON has no word for these, so every writer found its own."""

FURTHEST = 1 << 62
"""No training counts further; a larger number is no step."""

_NULLED = re.compile(r"loss|grad.*norm", re.IGNORECASE)


def number(value: Any) -> float | None:
    """A number that came out of JSON; None for anything else."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and len(value) <= 9:
        return SPELLED.get(value.strip().lower())
    return None


def whole(value: Any) -> int | None:
    """A step: a whole number, also one written as 10.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < FURTHEST else None
    if isinstance(value, float) and abs(value) < FURTHEST and value == int(value):
        return int(value)
    return None


def may_be_nulled(name: str) -> bool:
    """Whether null in a column of this name may stand for a number that was not finite."""
    return bool(_NULLED.search(name))
