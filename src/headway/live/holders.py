"""Who holds on to tensors: the name under which the user's code keeps them.

The backward pass is called from the training loop, so what the loop keeps hangs on the variables of
the functions up the stack, or on the modules they are in. Looked for only when there is reason to.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

from headway.torch_tools.places import is_machinery

MOST_OBJECTS = 20_000
MOST_ITEMS = 256
MOST_DEEP = 3
"""How far the search goes: a list in a dict of an attribute, and no further."""
MOST_FIELDS = 16
"""Of an entry that is taken for a record: above that it is a container of its own."""
_LEAVES = (str, bytes, int, float, complex, bool, type(None))
_CODE = (type, ModuleType, FunctionType, MethodType, FrameType)


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps the tensors."""

    name: str
    kind: str
    function: str
    count: int
    """How many of them are known to be in it."""
    bound: int | None = None
    """The most it ever holds, where it has such a limit."""

    def __str__(self) -> str:
        return f"the {self.kind} `{self.name}` in {self.function}"


def find_holder(is_kept: Callable[[Tensor], bool]) -> Holder | None:
    """The variable, attribute or container of the user's that keeps most of the tensors meant."""
    best: Holder | None = None
    seen: set[int] = set()
    left = MOST_OBJECTS
    for function, names in _scopes():
        todo = deque((name, value, 0) for name, value in names.items())
        while todo and left > 0:
            name, value, depth = todo.popleft()
            if isinstance(value, (*_LEAVES, *_CODE)) or id(value) in seen:
                continue
            seen.add(id(value))
            left -= 1
            found = _holder(name, value, function, is_kept)
            if found is not None and (best is None or found.count > best.count):
                best = found
            if depth < MOST_DEEP:
                todo.extend((inner, item, depth + 1) for inner, item in _inside(name, value))
    return best


def _holder(
    name: str, value: Any, function: str, is_kept: Callable[[Tensor], bool]
) -> Holder | None:
    kind = type(value).__name__
    if _is_tensor(value):
        return Holder(name, "tensor", function, 1) if is_kept(value) else None
    items = _items(value)
    if items is None:
        return None
    count = sum(1 for item in items if _keeps(item, is_kept))
    if not count:
        return None
    return Holder(name, kind, function, count, getattr(value, "maxlen", None))


def _keeps(item: Any, is_kept: Callable[[Tensor], bool]) -> bool:
    """Whether an entry of a container is meant, or is a small record with one in it."""
    if _is_tensor(item):
        return is_kept(item)
    if isinstance(item, (*_LEAVES, *_CODE)):
        return False
    inside = item if isinstance(item, (Mapping, list, tuple)) else _attributes(item)
    if len(inside) > MOST_FIELDS:
        return False
    parts = list(inside.values()) if isinstance(inside, Mapping) else inside
    return any(is_kept(part) for part in parts if _is_tensor(part))


def _items(value: Any) -> list[Any] | None:
    """The first and the last items of a container."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif isinstance(value, (set, frozenset)):
        value = list(value)
    elif not isinstance(value, (list, tuple, deque)):
        return None
    half = MOST_ITEMS // 2
    if len(value) <= MOST_ITEMS:
        return list(value)
    return [value[at] for at in (*range(half), *range(len(value) - half, len(value)))]


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is within, under the names it has there; tensors in containers were counted."""
    if isinstance(value, Mapping):
        for key, item in list(value.items())[:MOST_ITEMS]:
            if not _is_tensor(item):
                yield f"{name}[{key!r:.40}]", item
    elif (items := _items(value)) is not None:
        for item in items:
            if not _is_tensor(item):
                yield f"{name}[…]", item
    elif not _is_tensor(value):
        for attribute, item in list(_attributes(value).items()):
            yield f"{name}.{attribute}", item


def _attributes(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(value, "__dict__", {})
    return found if type(found) is dict else {}


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), Tensor)  # `isinstance` may ask the object, which may answer


def _scopes() -> Iterator[tuple[str, dict[str, Any]]]:
    """The user's functions up the stack with their variables, then their modules with theirs."""
    modules: dict[int, dict[str, Any]] = {}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not is_machinery(frame.f_code.co_filename):
            modules[id(frame.f_globals)] = frame.f_globals
            if frame.f_locals is not frame.f_globals:
                yield f"{frame.f_code.co_name}()", _locals(frame)
        frame = frame.f_back
    for names in modules.values():
        public = {name: value for name, value in names.items() if not name.startswith("__")}
        yield f"the module {names.get('__name__')}", public


def _locals(frame: FrameType) -> dict[str, Any]:
    names = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # A copy that Python keeps with the frame: it would hold this step's tensors on.
        frame.f_locals.clear()
    return names
