"""Modules and tensors that train but that `parameters()` does not know: kept in plain containers.

Looked at when the first losses are differentiated: only then is it known which leaves the loss
depends on, so that a teacher kept in a list on purpose is not meant.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from headway.live.discovery import leaves
from headway.preflight.observer import Observer
from headway.torch_tools.places import is_installed, is_machinery

LOOKS = 3
"""Backward passes that are looked at: a branch may have no part in the first one."""
DEEPEST = 4
"""Lists in dicts in lists …: no further down than this."""
MOST = 1000
"""Members of one container that are looked at: a data set has more, and no layers."""


class Unregistered(Observer):
    """Tells of what a module keeps where torch does not look (topic `unregistered`)."""

    def start(self) -> None:
        self._looked = 0
        self._told: set[tuple[int, str]] = set()

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._looked >= LOOKS or not self.scene.models:
            return
        self._looked += 1
        if self._looked == 1:
            self.evidence.tell("unregistered", {"tensors": 0})  # it was looked for
        modules = {id(inner): inner for model in self.scene.models for inner in model.modules()}
        hidden = list(_hidden(list(modules.values())))
        if not hidden:
            return
        # A module of a plain list is found as a model of its own: it is its owner's all the same.
        trained = {id(leaf) for leaf in leaves(roots)}
        groups = [group for item in self.scene.optimizers for group in item.param_groups]
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        for owner, attribute, kind, items in hidden:
            tensors = {id(item): item for one in items for item in _tensors(one)}
            owned = {id(item) for item in owner.parameters()}
            lost = [
                item
                for at, item in tensors.items()
                if at in trained and at not in optimized and at not in owned
            ]
            if lost and (id(owner), attribute) not in self._told:
                self._told.add((id(owner), attribute))
                self._tell(owner, attribute, kind, items, lost)

    def _tell(
        self, owner: nn.Module, attribute: str, kind: str, items: list[Any], lost: list[Tensor]
    ) -> None:
        path = "" if owner in self.scene.models else self.scene.path_of(owner)
        self.evidence.tell(
            "unregistered",
            {
                "owner": type(owner).__name__,
                "attribute": f"{path}.{attribute}" if path else attribute,
                "kind": kind,
                "holds": sorted({type(item).__name__ for item in items}),
                "count": len(items),
                "tensors": len(lost),
                "elements": sum(item.numel() for item in lost),
                "place": _line_that_sets(type(owner), attribute),
            },
        )


def _hidden(modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str, str, list[Any]]]:
    """(owner, attribute, kind of container, modules and tensors in it) for all that is hidden."""
    for owner in modules:
        registered = {id(item) for item in (*owner.modules(), *owner.parameters())}
        for attribute, value in list(vars(owner).items()):
            if attribute.startswith("_") and attribute in vars(nn.Module()):
                continue
            found = [item for item in _contents(value, DEEPEST) if id(item) not in registered]
            if found:
                yield owner, attribute, type(value).__name__, found


def _contents(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, Tensor):
        if value.is_leaf and value.requires_grad:
            yield value
    elif depth and isinstance(value, Mapping):
        for item in list(islice(value.values(), MOST)):
            yield from _contents(item, depth - 1)
    elif depth and isinstance(value, (list, tuple, set, frozenset)):
        for item in list(islice(value, MOST)):
            yield from _contents(item, depth - 1)
    elif depth and isinstance(value, FunctionType):
        # A closure keeps its layers as well.
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # not filled yet
                yield from _contents(cell.cell_contents, min(depth - 1, 1))
        for item in value.__defaults__ or ():
            yield from _contents(item, min(depth - 1, 1))
    elif depth and isinstance(value, functools.partial):
        for item in (value.func, *value.args, *value.keywords.values()):
            yield from _contents(item, min(depth - 1, 1))
    elif depth and _is_users_object(value):
        for item in list(vars(value).values()):
            yield from _contents(item, min(depth - 1, 2))


def _is_users_object(value: Any) -> bool:
    """A plain object of a class that the script itself defines; it may well be called."""
    if isinstance(value, (type, ModuleType)) or not hasattr(value, "__dict__"):
        return False
    file = getattr(inspect.getmodule(type(value)), "__file__", None)
    return file is not None and not is_machinery(file) and not is_installed(file)


def _tensors(item: Any) -> list[Tensor]:
    return [item] if isinstance(item, Tensor) else list(item.parameters())


def _line_that_sets(kind: type, attribute: str) -> dict[str, Any] | None:
    """The line of the class that gives the attribute its value."""
    for base in kind.__mro__[:-1]:
        try:
            lines, first = inspect.getsourcelines(base)
            file = inspect.getsourcefile(base)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines):
            if re.search(rf"\bself\.{re.escape(attribute)}\s*(:[^=]+)?=[^=]", line):
                return {"file": file, "line": first + number, "function": "__init__"}
    return None
