"""Walking through nested states: dicts and lists with tensors as leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from headway.torch_tools.safe_loading import SIMPLE, loads_safely

Path = tuple[Any, ...]
"""The keys and positions that lead to a tensor."""


def tensors_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor of a nested state."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from tensors_in(item, (*path, position))


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same nested state, in plain dicts and lists, with every tensor replaced."""
    return map_with_paths(value, lambda tensor, path: change(tensor))


def map_with_paths(value: Any, change: Callable[[Tensor, Path], Any], path: Path = ()) -> Any:
    """The same; `change` also learns where the tensor is."""
    if isinstance(value, Tensor):
        return change(value, path)
    if isinstance(value, Counter):
        return value
    if isinstance(value, Mapping):
        return {key: map_with_paths(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [map_with_paths(item, change, (*path, at)) for at, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def plain(value: Any) -> Any:
    """Only what loads safely: functions and objects of unknown classes become None, and so do the
    few numbers and bytes that torch would not load."""
    if value is None or isinstance(value, Tensor):
        return value
    if type(value) in SIMPLE:
        return value if loads_safely(value) else None
    if isinstance(value, Counter):  # a milestone may be there twice, and schedulers count on it
        return Counter({plain(key): int(count) for key, count in value.items()})
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple([plain(item) for item in value])
    kind: Any
    for kind in SIMPLE:  # NumPy's float64 is a float, and no plain one
        if isinstance(value, kind):
            return plain(str.__str__(value) if isinstance(value, str) else kind(value))
    scalar = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    found = value.item() if scalar else None
    return plain(found) if type(found) in SIMPLE else None
