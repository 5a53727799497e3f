"""What the user calls a computed value, read from the line that computes it, and the scalars behind
a loss.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from headway.torch_adapters.autograd_graph import LEAF, node_number, walk_graph
from headway.torch_adapters.frames import is_installed_file

# What the user calls a value that is being computed: read from the line that computes it.

# `aux_loss = F.mse_loss(a, b)` makes an `aux_loss`, `{"box": l1(a, b)}` a `box`, `losses["dfl"] =
# …` a `dfl`; a value that a function returns bears the function's name, or the one its caller
# gives it.

MOST_LEVELS = 12
"""Calls within calls that are looked at."""
MAX_EXPRESSION = 40
"""Maximum length of an expression that names a component."""
LOSS_ENDINGS = ("_loss", "cross_entropy", "cross_entropy_with_logits", "kl_div")
"""Endings of the torch functions that name a component well enough; `mean` or `sum` do not."""
_GENERIC_WORDS = """
    loss losses l total total_loss out output outputs result res ret value val x y z tmp s acc sum
    running batch_loss step_loss overall final objective cost lo li item term full train_loss
    forward __call__ training_step compute_loss loss_fn loss_function criterion get_loss
    calc_loss step train_step train main run closure train_one_epoch train_epoch fit shared_step
    _shared_step <module> <lambda> <genexpr> <listcomp> <dictcomp> <setcomp>
"""
GENERIC_NAMES = frozenset(_GENERIC_WORDS.split())
"""Names that say nothing about which part of a loss it is."""


@dataclass(frozen=True, slots=True)
class SourceLevel:
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


def read_levels(frames: Iterable[FrameType]) -> tuple[SourceLevel, ...]:
    """The stack as names, innermost first."""
    return tuple(_level(frame.f_code, frame.f_lasti) for frame in islice(frames, MOST_LEVELS))


@lru_cache(maxsize=4096)
def _level(code: CodeType, last: int) -> SourceLevel:
    where = _position(code, last)
    tree = _tree(code.co_filename)
    node = None if tree is None or where is None else tree.at.get(where)
    line = code.co_firstlineno if where is None else where[0]
    name = None
    if tree is not None and node is not None:
        name = _name(node, tree)
    column = 0 if where is None else where[2]
    return SourceLevel(code.co_filename, line, column, code.co_name, name, node)


def _position(code: CodeType, last: int) -> tuple[int, int, int, int] | None:
    positions = getattr(code, "co_positions", None)  # from Python 3.11 on
    if positions is None:
        return None
    line, end, column, end_column = next(islice(positions(), last // 2, None), (None,) * 4)
    if line is None or end is None or column is None or end_column is None:
        return None
    return (line, end, column, end_column)


class SourceTree:
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
def _tree(file: str) -> SourceTree | None:
    lines = linecache.getlines(file)
    if not lines or len(lines) > 20_000:
        return None
    try:
        return SourceTree(ast.parse("".join(lines)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def parse_source(level: SourceLevel) -> SourceTree | None:
    """The syntax tree of a level's file."""
    return _tree(level.file)


def _name(node: ast.AST, tree: SourceTree) -> str | None:
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


# The scalars a script computes on its way to a backward pass, and what it calls them.

MOST_BENEATH = 400
"""Nodes below a term that are searched for its losses."""


@dataclass(eq=False, slots=True)
class Scalar:
    """One number that was computed."""

    node: Any
    """Its node in the graph; None where it has none."""
    value: Tensor
    """A copy: some are added to in place afterwards."""
    op: str
    levels: tuple[SourceLevel, ...]
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


def find_sources(node: Any, known: dict[Any, Scalar], oldest: int) -> list[Scalar]:
    """The sources from which a node of the graph is computed, the nearest first."""
    found = []
    for below in walk_graph([node], after=oldest - 1, most=MOST_BENEATH):
        scalar = known.get(below)
        if scalar is not None and scalar.source:
            found.append(scalar)
    return found


def oldest_sequence_number(scalars: Iterable[Scalar]) -> int:
    """The number of the first node among them."""
    return min((node_number(item.node) for item in scalars if item.node is not None), default=LEAF)


def choose_names(groups: Sequence[Sequence[Scalar]]) -> list[str]:
    """A distinct name for each group of scalars."""
    common = [_common(group) for group in groups]
    taken: list[str] = []
    for at, levels in enumerate(common):
        others = [item for number, item in enumerate(common) if number != at]
        keys = {level.key for other in others for level in other}
        functions = {(level.file, level.function) for other in others for level in other}
        name = _own_name(levels, keys, functions) or _unnamed(groups[at][0])
        number = 2
        unique = name
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.append(unique)
    return taken


def _common(group: Sequence[Scalar]) -> list[SourceLevel]:
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


def _own_name(levels: Sequence[SourceLevel], keys: set[Any], functions: set[Any]) -> str | None:
    for level in levels:
        if level.key not in keys and level.name and level.name.lower() not in GENERIC_NAMES:
            return level.name
        # A function of a framework that runs the loop says nothing about the user's loss.
        own = level.function not in GENERIC_NAMES and not is_installed_file(level.file)
        if own and (level.file, level.function) not in functions:
            return level.function.lstrip("_")
    return None


def _unnamed(item: Scalar) -> str:
    """A name for a scalar without one: the loss function, or the user's expression."""
    if item.op.endswith(LOSS_ENDINGS):
        return item.op
    for level in item.levels:
        if level.node is not None and not is_installed_file(level.file):
            text = ast.unparse(level.node).replace("\n", " ")
            return text if len(text) <= MAX_EXPRESSION else f"{text[: MAX_EXPRESSION - 1]}…"
    return item.op


def locate_scalar(item: Scalar) -> dict[str, Any] | None:
    """The line of the user's that makes it."""
    for level in item.levels:
        if not is_installed_file(level.file):
            return {"file": level.file, "line": level.line, "function": level.function}
    return None
