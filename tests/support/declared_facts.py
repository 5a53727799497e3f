"""Compares facts as an observer writes them with the type that declares their topic."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from headway.core import data_facts, loss_facts, model_facts, optimizer_facts, sequence_facts
from headway.core.check import UNAVAILABLE
from headway.core.facts import FactTable, TopicFacts
from headway.engine import PLACES

KINDS = {
    kind.topic: kind
    for module in (loss_facts, optimizer_facts, model_facts, data_facts, sequence_facts)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, TopicFacts) and hasattr(kind, "topic")
}


def undeclared(topic: str, facts: Mapping[str, Any]) -> list[str]:
    """What the type of the topic does not declare: unknown keys, and values of another type."""
    if topic == PLACES or UNAVAILABLE in facts:
        return []
    if topic not in KINDS:
        return [f"{topic} has no type"]
    return list(_lost(facts, _plain(KINDS[topic].read(facts)), topic))


def _plain(value: Any) -> Any:
    if isinstance(value, FactTable):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _lost(written: Any, read: Any, path: str) -> list[str]:
    """The paths at which reading did not give back what was written."""
    if isinstance(written, Mapping) and isinstance(read, Mapping):
        unknown = [f"{path}.{key}" for key in written if key not in read]
        known = [key for key in written if key in read and written[key] is not None]
        return unknown + [
            problem for key in known for problem in _lost(written[key], read[key], f"{path}.{key}")
        ]
    if isinstance(written, (list, tuple)) and isinstance(read, list):
        numbers = [item for item in written if not isinstance(item, float) or math.isfinite(item)]
        if len(numbers) != len(read):
            return [f"{path}: {written!r}"]
        pairs = zip(numbers, read, strict=True)
        return [problem for one, other in pairs for problem in _lost(one, other, f"{path}[]")]
    if isinstance(written, float) and not math.isfinite(written):
        return []
    return [] if written == read else [f"{path}: {written!r}"]
