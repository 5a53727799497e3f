"""What the user calls a value that is being computed: read from the line that computes it.

`aux_loss = F.mse_loss(a, b)` makes an `aux_loss`, `{"box": l1(a, b)}` a `box`, `losses["dfl"] = …`
a `dfl`; a value that a function returns bears the function's name, or the one its caller gives it.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

MOST_LEVELS = 12
"""Calls within calls that are looked at."""
_GENERIC = """
    loss losses l total total_loss out output outputs result res ret value val x y z tmp s acc sum
    running batch_loss step_loss overall final objective cost lo li item term full train_loss
    forward __call__ training_step compute_loss loss_fn loss_function criterion get_loss
    calc_loss step train_step train main run closure train_one_epoch train_epoch fit shared_step
    _shared_step <module> <lambda> <genexpr> <listcomp> <dictcomp> <setcomp>
"""
GENERIC = frozenset(_GENERIC.split())
"""Names that say nothing about which part of a loss it is."""


@dataclass(frozen=True, slots=True)
class Level:
    """One frame of the stack, at the moment the value was made."""

    file: str
    line: int
    column: int
    function: str
    name: str | None
    """What the statement calls its result; None where it has no name or adds several up."""
    node: Any = None
    """The expression, where it could be found."""

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Which expression of which file it is."""
        return (self.file, self.function, self.line, self.column)


def levels(frames: Iterable[FrameType]) -> tuple[Level, ...]:
    """The stack as names, innermost first."""
    return tuple(_level(frame.f_code, frame.f_lasti) for frame in islice(frames, MOST_LEVELS))


@lru_cache(maxsize=4096)
def _level(code: CodeType, last: int) -> Level:
    where = _position(code, last)
    tree = _tree(code.co_filename)
    node = None if tree is None or where is None else tree.at.get(where)
    line = code.co_firstlineno if where is None else where[0]
    name = None
    if tree is not None and node is not None:
        name = _name(node, tree)
    column = 0 if where is None else where[2]
    return Level(code.co_filename, line, column, code.co_name, name, node)


def _position(code: CodeType, last: int) -> tuple[int, int, int, int] | None:
    positions = getattr(code, "co_positions", None)  # from Python 3.11 on
    if positions is None:
        return None
    line, end, column, end_column = next(islice(positions(), last // 2, None), (None,) * 4)
    if line is None or end is None or column is None or end_column is None:
        return None
    return (line, end, column, end_column)


class Tree:
    """A file's syntax, with the way up and the expression at every position."""

    def __init__(self, module: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.at: dict[tuple[int, int, int, int], ast.AST] = {}
        for node in ast.walk(module):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.expr):
                key = (node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0)
                self.at.setdefault(key, node)

    def up(self, node: ast.AST) -> Iterable[ast.AST]:
        """The nodes around a node, the nearest first."""
        above = self.parents.get(node)
        while above is not None:
            yield above
            above = self.parents.get(above)


@lru_cache(maxsize=256)
def _tree(file: str) -> Tree | None:
    lines = linecache.getlines(file)
    if not lines or len(lines) > 20_000:
        return None
    try:
        return Tree(ast.parse("".join(lines)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def tree_of(level: Level) -> Tree | None:
    """The syntax of the file a level lies in."""
    return _tree(level.file)


def _name(node: ast.AST, tree: Tree) -> str | None:
    below: ast.AST = node
    element: ast.AST | None = None
    for above in tree.up(node):
        if isinstance(above, ast.BinOp) and isinstance(above.op, (ast.Add, ast.Sub)):
            if not isinstance(above.left, ast.Constant) and not isinstance(
                above.right, ast.Constant
            ):
                return None  # one of several: the statement's name is that of the sum
        elif isinstance(above, ast.Dict):
            for key, value in zip(above.keys, above.values, strict=True):
                if value is below:
                    return _text(key)
        elif isinstance(above, ast.keyword) and above.arg is not None:
            return above.arg
        elif isinstance(above, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = above.targets if isinstance(above, ast.Assign) else [above.target]
            return _target(targets[0], above.value, element)
        elif isinstance(above, (ast.stmt, ast.Lambda, ast.comprehension)):
            return None
        element = below if isinstance(above, (ast.Tuple, ast.List)) else element
        below = above
    return None


def _target(target: ast.AST, value: ast.AST | None, element: ast.AST | None) -> str | None:
    """What a target calls the value, or that element of it."""
    if isinstance(target, (ast.Tuple, ast.List)):
        elements: list[ast.AST] = []
        if isinstance(value, (ast.Tuple, ast.List)):
            elements = list(value.elts)
        at = elements.index(element) if element in elements else len(target.elts)
        return _text(target.elts[at]) if at < len(target.elts) else None
    if isinstance(value, (ast.Tuple, ast.List, ast.ListComp)):
        return None
    return _text(target)


def _text(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Subscript):
        return _text(node.slice) if isinstance(node.slice, ast.Constant) else _text(node.value)
    return None
