"""Rows that say in a word what they are of: training or held-out data, or one metric by name.

{"split": "val", "step": 100, "loss": 2.1}          the loss of the held-out data
{"step": 100, "name": "loss", "value": 2.1}         one number, and its name beside it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headway.sources.log.steps import EPOCH_NAMES, STEP_NAMES, plain

SPLIT_NAMES = (
    "split",
    "mode",
    "phase",
    "stage",
    "type",
    "kind",
    "set",
    "subset",
    "event",
    "prefix",
)
HELD_OUT = frozenset(
    ("val", "valid", "validation", "eval", "evaluation", "evaluate", "test", "testing", "dev")
)
METRIC_NAMES = ("name", "metric", "metric_name", "tag", "key")
VALUE_NAMES = ("value", "metric_value", "val")
PREFIX = "val/"

_COUNTS = frozenset((*STEP_NAMES, *EPOCH_NAMES))


def held_out(row: Mapping[str, Any]) -> bool:
    """Whether a row says that it is of held-out data."""
    return any(says_held_out(row[name]) for name in SPLIT_NAMES if name in row)


def says_held_out(word: Any) -> bool:
    """Whether this word means held-out data."""
    return isinstance(word, str) and word.strip().lower() in HELD_OUT


def as_held_out(values: Mapping[str, float]) -> dict[str, float]:
    """The names as those of held-out data, where they do not say so themselves."""
    return {
        name
        if plain(name) in _COUNTS or not HELD_OUT.isdisjoint(_parts(name))
        else PREFIX + name: v
        for name, v in values.items()
    }


def long_form(names: Iterable[str]) -> tuple[str, str] | None:
    """The two names of a row that has a metric's name and its value."""
    known = set(names)
    metric = next((name for name in METRIC_NAMES if name in known), None)
    value = next((name for name in VALUE_NAMES if name in known), None)
    return (metric, value) if metric is not None and value is not None else None


def _parts(name: str) -> list[str]:
    return name.lower().replace("/", "_").replace("-", "_").split("_")
