"""Looks up private names of torch and of the interpreter, each with a documented fall-back.

A private name may vanish with any release. Code that needs one looks it up here by its dotted name
and says what happens without it; `PRIVATE_PARTS` lists all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class PrivatePart:
    """A private name that this package uses."""

    name: str
    present: bool
    """Whether this torch, or this interpreter, has it."""
    without: str
    """What happens where it is missing."""


PRIVATE_PARTS: dict[str, PrivatePart] = {}
"""Every name that was looked up, by its dotted name."""
TREAT_AS_MISSING: set[str] = set()
"""Names that are not looked up: tests put names here to see the fall-back."""

_MISSING: Any = object()


def private_part(name: str, fallback: Any, *, without: str) -> Any:
    """The object of this dotted name; the fall-back where it does not exist."""
    found = _MISSING if name in TREAT_AS_MISSING else _look_up(name)
    PRIVATE_PARTS[name] = PrivatePart(name, found is not _MISSING, without)
    return fallback if found is _MISSING else found


def private_attribute(
    name: str, fallback: Callable[[Any], Any], *, without: str
) -> Callable[[Any], Any]:
    """A function that reads an attribute of instances: `torch.Tensor._version`.

    It is an `attrgetter`, so that reading takes no Python frame.
    """
    found = private_part(name, None, without=without)
    return fallback if found is None else attrgetter(name.rpartition(".")[2])


def private_method(
    name: str, fallback: Callable[[Any], Any], *, without: str
) -> Callable[[Any], Any]:
    """A function that calls a method without arguments: `torch._C._FunctionBase._sequence_nr`."""
    found = private_part(name, None, without=without)
    return fallback if found is None else methodcaller(name.rpartition(".")[2])


def missing_parts() -> list[PrivatePart]:
    """Every private name that headway uses and this torch, or this interpreter, lacks."""
    package = importlib.import_module(__package__)
    for module in pkgutil.walk_packages(package.__path__, f"{__package__}."):
        importlib.import_module(module.name)
    return [part for part in PRIVATE_PARTS.values() if not part.present]


def _look_up(name: str) -> Any:
    first, *rest = name.split(".")
    found: Any = importlib.import_module(first)
    path = first
    for part in rest:
        path = f"{path}.{part}"
        inner = getattr(found, part, _MISSING)
        if inner is _MISSING and isinstance(found, ModuleType):
            try:  # a submodule that is not imported yet
                inner = importlib.import_module(path)
            except ImportError:
                return _MISSING
        if inner is _MISSING:
            return _MISSING
        found = inner
    return found
