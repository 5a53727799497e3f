"""The same nested value with other tensors in it: containers keep their classes.

A batch or a module's output may be a dict, a named tuple, a dataclass or a mapping of some library;
whoever receives the changed one must not notice. What holds nothing changed is returned itself.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Visit = Callable[[Any], Any]


def rebuilt(value: Any, visit: Visit) -> Any:
    """`visit` gives what a value is to be replaced by, or the value itself; what it leaves alone is
    looked into."""
    found = visit(value)
    if found is not value:
        return found
    if isinstance(value, Mapping):
        return _mapping(value, visit)
    if isinstance(value, (list, tuple)):
        items = [rebuilt(item, visit) for item in value]
        return sequence_like(value, items) if _differ(items, value) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, visit)
    return value


def sequence_like(value: Any, items: list[Any]) -> Any:
    """These items in a list or tuple of the same class."""
    if hasattr(value, "_fields"):
        return type(value)(*items)
    return items if type(value) is list else type(value)(items)


def _mapping(value: Mapping[Any, Any], visit: Visit) -> Any:
    items = {key: rebuilt(item, visit) for key, item in value.items()}
    if not _differ(items.values(), value.values()):
        return value
    try:
        changed: Any = copy.copy(value)
        for key, item in items.items():
            if changed[key] is not item:
                changed[key] = item
    except TypeError:  # it cannot be written to
        return items
    return changed


def _dataclass(value: Any, visit: Visit) -> Any:
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    theirs = [getattr(value, name) for name in names]
    items = [rebuilt(item, visit) for item in theirs]
    if not _differ(items, theirs):
        return value
    changed = copy.copy(value)
    for name, item in zip(names, items, strict=True):
        object.__setattr__(changed, name, item)  # frozen ones as well
    return changed


def _differ(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return any(one is not other for one, other in zip(some, others, strict=True))
