"""Which lines a plain number in a sum comes from, as far as the source tells.

A number has no history. The statement that adds it names a variable; the statement that sets that
variable, and the functions it calls, are the lines that may have made it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headway.preflight.naming import Level, Tree, tree_of

Lines = tuple[int, int]


def lines_behind(level: Level, position: int) -> list[Lines]:
    """The lines, first and last, behind the operand at a position of the sum on this line."""
    tree = tree_of(level)
    if tree is None:
        return []
    operand = _operand(level, tree, position)
    if operand is None:
        return []
    found: list[Lines] = [_span(operand)]
    expressions: list[ast.AST] = [operand]
    for name in _names(operand):
        for statement in _settings(name, level, tree):
            found.append(_span(statement))
            expressions.append(statement)
    for expression in expressions:
        found += [_span(function) for function in _called(expression, tree)]
    return found


def _operand(level: Level, tree: Tree, position: int) -> ast.AST | None:
    node = level.node
    if isinstance(node, ast.BinOp):
        return node.right if position else node.left
    for other in tree.parents:
        if isinstance(other, ast.AugAssign) and other.lineno == level.line:
            return other.value
    return None


def _span(node: ast.AST) -> Lines:
    first: int = getattr(node, "lineno", 0)
    return (first, getattr(node, "end_lineno", None) or first)


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(item) for item in ast.walk(node) if isinstance(item, _VARIABLES)}


_VARIABLES = (ast.Name, ast.Attribute, ast.Subscript)


def _settings(name: str, level: Level, tree: Tree) -> Iterator[ast.AST]:
    """The statements of the same function that set it."""
    for node in tree.parents:
        if isinstance(node, ast.Assign):
            targets: list[ast.AST] = list(node.targets)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets = [node.target]
        else:
            continue
        plain = [item for target in targets for item in getattr(target, "elts", [target])]
        if any(ast.unparse(item) == name for item in plain) and _within(node, level, tree):
            yield node


def _within(node: ast.AST, level: Level, tree: Tree) -> bool:
    for above in tree.up(node):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return above.name == level.function
    return level.function == "<module>"


def _called(node: ast.AST, tree: Tree) -> Iterator[ast.AST]:
    """The functions of the file that an expression calls."""
    names = {
        item.func.attr if isinstance(item.func, ast.Attribute) else getattr(item.func, "id", None)
        for item in ast.walk(node)
        if isinstance(item, ast.Call)
    }
    for other in tree.parents:
        if isinstance(other, (ast.FunctionDef, ast.AsyncFunctionDef)) and other.name in names:
            yield other
