"""Numbers as stores write them: the many spellings of what is not finite, steps that are whole."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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

MOST_SETTINGS = 1000
"""More of them are no settings of a training."""

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


def spelled(name: str, value: str) -> float | None:
    """A number kept as text, where the name says that it is one: `"loss": "2.31"`."""
    if len(value) > 32 or not is_metric(name):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def whole(value: Any) -> int | None:
    """A step: a whole number, also one written as 10.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < FURTHEST else None
    if isinstance(value, str):
        return int(value) if len(value) < 18 and value.isascii() and value.isdigit() else None
    if isinstance(value, float) and abs(value) < FURTHEST and value == int(value):
        return int(value)
    return None


_METRIC = re.compile(
    r"(?<![a-z])(?:loss|acc|accuracy|grad[a-z_]*norm|lr|learning_rate|perplexity|ppl|reward|nll|"
    r"mse|mae|rmse|f1|bleu|error)(?![a-z])(?!.*(?:coef|eps|type|fn|weight|scale|function)$)",
    re.IGNORECASE,
)


def is_metric(name: str) -> bool:
    """Whether a name is one that trainings log, and settings seldom have."""
    return bool(_METRIC.search(name))


def plain_settings(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are numbers, words or switches; not too many and not too long."""
    kept: dict[str, Any] = {}
    for name, value in found.items():
        short = isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= 500)
        if short and len(name) <= 200 and len(kept) < MOST_SETTINGS:
            kept[name] = value
    return kept


def may_be_nulled(name: str) -> bool:
    """Whether null in a column of this name may stand for a number that was not finite."""
    return bool(_NULLED.search(name))
