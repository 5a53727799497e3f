"""Under which condition a line runs, as far as the source tells: what the data are, or a setting.

A loss function that finds nothing to compare gives back a 0 (`if not pairs.any(): return zeros`):
that depends on the data. A part that somebody has switched off gives one as well: on a setting.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from headway.preflight.naming import Level, Tree, tree_of

_TIME = re.compile(r"epoch|step|iter|warm|start|begin|phase|stage|\bit\b|\bi\b|burn|anneal|ramp")
_OF_SETTINGS = {"get", "getattr", "hasattr", "isinstance", "callable", "is_available", "type"}
_OF_DATA = {"shape", "size", "ndim", "nelement", "numel"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MOST_DEPTH = 4


def on_time(levels: Sequence[Level]) -> bool:
    """Whether it stands under a condition about steps or epochs: a warm-up."""
    return any(_TIME.search(ast.unparse(test).lower()) for _, test in _tests(levels))


def on_data(levels: Sequence[Level]) -> bool:
    """Whether the nearest condition asks what the data are: `if not mask.any()`."""
    for tree, test in _tests(levels):
        return _asks_data(test, tree)
    return False


def _tests(levels: Sequence[Level]) -> Iterator[tuple[Tree, ast.expr]]:
    """The conditions around a value, the nearest first, function by function."""
    for level in levels:
        tree = tree_of(level)
        if tree is None or level.node is None:
            continue
        found = list(_around(level.node, tree)) or list(_instead(level.node, tree))
        yield from ((tree, test) for test in found)


def _around(node: ast.AST, tree: Tree) -> Iterator[ast.expr]:
    for above in tree.up(node):
        if isinstance(above, _FUNCTIONS):
            return
        if isinstance(above, (ast.If, ast.IfExp)):
            yield above.test


def _instead(node: ast.AST, tree: Tree) -> Iterator[ast.expr]:
    """The conditions under which a variable that begins with this value gets another one."""
    statement = next((item for item in tree.up(node) if isinstance(item, ast.Assign)), None)
    function = next((item for item in tree.up(node) if isinstance(item, _FUNCTIONS)), None)
    if statement is None or function is None:
        return
    name = ast.unparse(statement.targets[0])
    for other in ast.walk(function):
        if not isinstance(other, ast.Assign) or other is statement:
            continue
        if ast.unparse(other.targets[0]) == name:
            yield from _around(other, tree)


def _asks_data(test: ast.AST, tree: Tree, depth: int = 0) -> bool:
    for item in ast.walk(test):
        if isinstance(item, ast.Call) and _called(item) not in _OF_SETTINGS:
            return True
        if isinstance(item, ast.Attribute) and item.attr in _OF_DATA:
            return True
        if isinstance(item, ast.Compare) and any(
            isinstance(op, (ast.In, ast.NotIn)) for op in item.ops
        ):
            return all(isinstance(side, ast.Name) for side in item.comparators)
        if isinstance(item, ast.Name) and depth < MOST_DEPTH:
            values = _set_to(item, tree)
            if any(_asks_data(value, tree, depth + 1) for value in values):
                return True
    return False


def _called(call: ast.Call) -> str | None:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _set_to(name: ast.Name, tree: Tree) -> Iterator[ast.AST]:
    """What the same function sets a variable to, before it is asked for."""
    function = next((item for item in tree.up(name) if isinstance(item, _FUNCTIONS)), None)
    for other in ast.walk(function) if function is not None else ():
        if not isinstance(other, ast.Assign) or other.lineno >= name.lineno:
            continue
        if any(isinstance(item, ast.Name) and item.id == name.id for item in other.targets):
            yield other.value
