"""What a `for` loop binds at every turn, and where in it the batch is.

    for i, (x, y) in enumerate(guard(loader)):         # (a count, the batch)
    for batch, weight in zip(guard(loader), weights):  # (the batch, something beside it)

Told by the present variables: those that the body does not bind to something else still are what
the loop bound.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LoopVariable:
    """The target of a loop."""

    target: ast.expr
    batch: ast.expr
    """The part of it that is the batch."""
    variables: Mapping[str, Any]
    count: str | None
    """The name that `enumerate` counts in."""

    @property
    def beside(self) -> bool:
        """Whether something other than a count is drawn along with the batch."""
        return any(
            node.id != self.count for node in _names(self.target) if not _within(node, self.batch)
        )

    def holding(self, batch: Any, age: int) -> Any:
        """What the loop would bind for a batch that came so many before the latest."""
        return self._value(self.target, batch, age)

    def _value(self, node: ast.expr, batch: Any, age: int) -> Any:
        if node is self.batch:
            return batch
        if isinstance(node, ast.Name):
            value = self.variables[node.id]
            return value - age if node.id == self.count else value
        assert isinstance(node, (ast.Tuple, ast.List))
        return tuple(self._value(item, batch, age) for item in node.elts)


def match(loop: ast.For, variables: Mapping[str, Any], latest: Any) -> LoopVariable | None:
    """How the loop comes by its batch; None if it is not over batches."""
    rebound = bound_in(loop.body)
    candidates = []
    for node in _parts(loop.target):
        others = [name.id for name in _names(loop.target) if not _within(name, node)]
        known = all(name in variables and name not in rebound for name in others)
        if known and _fits(node, latest, variables, rebound):
            candidates.append(node)
    if not candidates:
        return None
    certain = [node for node in candidates if any(n.id not in rebound for n in _names(node))]
    batch = (certain or candidates)[0]
    return LoopVariable(loop.target, batch, variables, _count(loop, batch, variables))


def bound_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Every name that these statements bind."""
    found = set()
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
    return found


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    yield target
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _parts(item)


def _names(node: ast.expr) -> list[ast.Name]:
    return [item for item in ast.walk(node) if isinstance(item, ast.Name)]


def _within(name: ast.Name, node: ast.expr) -> bool:
    return any(item is name for item in ast.walk(node))


def _count(loop: ast.For, batch: ast.expr, variables: Mapping[str, Any]) -> str | None:
    """`i` in `for i, batch in enumerate(…)`."""
    target = loop.target
    if batch is target or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return None
    first = target.elts[0]
    if not isinstance(first, ast.Name) or not isinstance(variables.get(first.id), int):
        return None
    return None if _within(first, batch) else first.id


def _fits(target: ast.expr, value: Any, variables: Mapping[str, Any], rebound: set[str]) -> bool:
    if isinstance(target, ast.Name):
        return target.id in rebound or variables.get(target.id) is value
    if not isinstance(target, (ast.Tuple, ast.List)) or isinstance(value, (str, bytes)):
        return False
    try:
        parts = list(value)
    except TypeError:
        return False
    if any(isinstance(item, ast.Starred) for item in target.elts):
        return len(parts) >= len(target.elts) - 1
    return len(parts) == len(target.elts) and all(
        _fits(item, part, variables, rebound) for item, part in zip(target.elts, parts, strict=True)
    )
