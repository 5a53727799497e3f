"""The scalars a script computes on its way to a backward pass, and what it calls them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from headway.live.graph import LEAF, nodes
from headway.preflight.naming import GENERIC, Level
from headway.torch_tools.places import is_installed

BENEATH = 400
"""Nodes below a term that are searched for the losses it is made of."""


@dataclass(eq=False, slots=True)
class Scalar:
    """One number that was computed."""

    node: Any
    """Its node in the graph; None where it has none."""
    value: Tensor
    """A copy: some are added to in place afterwards."""
    op: str
    levels: tuple[Level, ...]
    source: bool
    """A loss function or a reduction made it, not mere arithmetic on other scalars."""
    fed: bool = False
    """Whether a backward pass began at it or above it."""
    read: bool = False
    """Whether the script took the plain number out of it."""
    age: int = 0

    @property
    def key(self) -> tuple[tuple[str, str, int, int], ...]:
        """Where it is computed: the same at every step."""
        return tuple(level.key for level in self.levels)


def beneath(node: Any, known: dict[Any, Scalar], oldest: int) -> list[Scalar]:
    """The sources a node of the graph is made of, those nearest to it first."""
    found = []
    for below in nodes([node], after=oldest - 1, most=BENEATH):
        scalar = known.get(below)
        if scalar is not None and scalar.source:
            found.append(scalar)
    return found


def oldest_of(scalars: Iterable[Scalar]) -> int:
    """The number of the first node among them."""
    return min(
        (item.node._sequence_nr() for item in scalars if item.node is not None), default=LEAF
    )


def names_for(groups: Sequence[Sequence[Scalar]]) -> list[str]:
    """A name for each group of scalars that tells it from the others."""
    common = [_common(group) for group in groups]
    taken: list[str] = []
    for at, levels in enumerate(common):
        others = [item for number, item in enumerate(common) if number != at]
        keys = {level.key for other in others for level in other}
        functions = {(level.file, level.function) for other in others for level in other}
        name = _own_name(levels, keys, functions) or groups[at][0].op
        number = 2
        unique = name
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.append(unique)
    return taken


def _common(group: Sequence[Scalar]) -> list[Level]:
    """The levels all of a group share, innermost first."""
    shared = set(group[0].key)
    functions = {level.key[:2] for level in group[0].levels}
    for item in group[1:]:
        shared &= set(item.key)
        functions &= {level.key[:2] for level in item.levels}
    return [
        # Several lines of one function: the function is theirs, the name of the line is not.
        level if level.key in shared else replace(level, name=None)
        for level in group[0].levels
        if level.key[:2] in functions
    ]


def _own_name(levels: Sequence[Level], keys: set[Any], functions: set[Any]) -> str | None:
    for level in levels:
        if level.key not in keys and level.name and level.name.lower() not in GENERIC:
            return level.name
        if (level.file, level.function) not in functions and level.function not in GENERIC:
            return level.function.lstrip("_")
    return None


def place_of(item: Scalar) -> dict[str, Any] | None:
    """The line of the user's that makes it."""
    for level in item.levels:
        if not is_installed(level.file):
            return {"file": level.file, "line": level.line, "function": level.function}
    return None
