"""Of what a loss is the sum: reading its graph from the end.

`loss = (ce + 0.5 * box.mean() / k) * scale` is followed back through sums, factors and whatever
merely passes a number on, until something is reached that is no sum of others: a term.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_NODES = 600
"""A sum of more parts is read no further."""

_SUMS = ("Add", "Sub", "Rsub")
_PASSING = (
    "Mul",
    "Div",
    "Neg",
    "ToCopy",
    "Clone",
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Unsqueeze",
    "Squeeze",
    "Alias",
    "Expand",
    "Select",
    "NanToNum",
)
_JOINS = ("Stack", "Cat", "CopySlices")
_FOLDS = ("Sum", "Mean")


@dataclass(eq=False, slots=True)
class Term:
    """One addend."""

    node: Any
    number: int
    """Which of the node's outputs it is."""
    path: list[Any] = field(default_factory=list)
    """The nodes between it and where it joins others, those nearest to it first."""
    trail: list[Any] = field(default_factory=list)
    """All nodes on the way to it, from the end of the loss on."""


def terms_of(root: Any, number: int = 0, whole: Container[Any] = ()) -> list[Term]:
    """The addends of the scalar that a node of the graph makes, in the order they are met.

    Nodes in `whole` are terms, whatever they are made of.
    """
    if root is None:
        return []
    found: dict[Any, Term] = {}
    todo: list[tuple[Any, int, list[Any], list[Any]]] = [(root, number, [], [])]
    seen: set[Any] = set()
    while todo:
        node, number, path, trail = todo.pop()
        if len(seen) > MOST_NODES:
            return []
        kind = _kind(node)
        following = [(item, at) for item, at in node.next_functions if item is not None]
        if following and node not in whole and _is_linear(node, kind, following):
            if node in seen:
                continue
            seen.add(node)
            # Behind a sum of several a path begins anew: what lies above is not this term's own.
            alone = len(following) == 1 and kind not in _JOINS
            here = [*path, node] if alone else []
            todo += [(item, at, here, [*trail, node]) for item, at in reversed(following)]
        elif node not in found:
            found[node] = Term(node, number, list(reversed(path)), trail)
    return list(found.values())


def sums_in(root: Any) -> set[Any]:
    """The nodes of a loss that are sums and factors of its terms, the last one included."""
    return {node for term in terms_of(root) for node in term.trail}


def _is_linear(node: Any, kind: str, following: Sequence[tuple[Any, int]]) -> bool:
    if kind in _SUMS or kind in _JOINS:
        return True
    if kind in _PASSING:
        return len(following) == 1
    if kind in _FOLDS and _numel(node) == 1:
        return _folds_scalars(following[0][0])
    return False


def _folds_scalars(node: Any) -> bool:
    """Whether a sum or mean runs over a list of scalars that somebody put together."""
    for _ in range(6):
        kind = _kind(node)
        following = [item for item, _ in node.next_functions if item is not None]
        if kind == "CopySlices":
            return True
        if kind in _JOINS:
            return all(_numel(item) == 1 for item in following)
        if kind not in _PASSING or len(following) != 1:
            return False
        node = following[0]
    return False


def _kind(node: Any) -> str:
    """`Add` of `AddBackward0`."""
    name: str = node.name().rpartition("::")[2]
    return name.partition("Backward")[0]


def _numel(node: Any) -> int:
    described = getattr(node, "_input_metadata", None) or ()
    count = 1
    for size in described[0].shape if described else (2,):
        count *= int(size)
    return count
