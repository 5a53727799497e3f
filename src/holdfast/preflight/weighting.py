"""Whether the weight of a loss component is a fixed number or follows a schedule.

A weight of 0 that is written down is a mistake or a switch that is off. One that is computed, from
the epoch say, is an annealing that begins at 0. The source tells which.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from holdfast.preflight.naming import Level, Tree, tree_of


def is_fixed(levels: Sequence[Level]) -> bool:
    """Whether the factor in this multiplication is written down somewhere as it is.

    False where it is computed, or where that cannot be seen.
    """
    if not levels or not isinstance(levels[0].node, ast.BinOp):
        return False
    product = levels[0].node
    if not isinstance(product.op, (ast.Mult, ast.Div)):
        return False
    return any(_fixed(side, levels) for side in (product.left, product.right) if _small(side))


def _small(node: ast.AST) -> bool:
    return isinstance(node, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.UnaryOp))


def _fixed(node: ast.AST | None, levels: Sequence[Level], depth: int = 0) -> bool:
    tree = tree_of(levels[0])
    if node is None or tree is None or depth > 6:
        return False
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.UnaryOp):
        return _fixed(node.operand, levels, depth + 1)
    if isinstance(node, ast.Subscript):
        return _plain(node.value) and _never_set(node, tree)
    if isinstance(node, ast.Attribute):
        return _plain(node) and _never_set(node, tree)
    if isinstance(node, ast.Name):
        return _named(node, levels, tree, depth)
    return False


def _named(node: ast.Name, levels: Sequence[Level], tree: Tree, depth: int) -> bool:
    function = _function(levels[0], tree)
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        values = _assigned(node.id, function)
        if not values and (given := _passed(node.id, function, levels)) is not None:
            return isinstance(given, str) or _fixed(given, levels[1:], depth + 1)
        if values:
            return all(_fixed(value, levels, depth + 1) for value in values)
    module = _module(node, tree)
    values = _assigned(node.id, module) if module is not None else []
    return bool(values) and all(_written(value) for value in values)


def _written(node: ast.AST) -> bool:
    """Whether a module's variable is set to a number, or to an option of the program."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) or _plain(node)


def _plain(node: ast.AST) -> bool:
    """`args.weight`, `self.cfg.weights`: names and dots alone."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name)


def _never_set(node: ast.Attribute | ast.Subscript, tree: Tree) -> bool:
    """Whether no line gives it a computed value, but where the object is made."""
    said = ast.unparse(node)
    for other in tree.parents:
        if isinstance(other, ast.AugAssign) and ast.unparse(other.target) == said:
            return False
        if isinstance(other, ast.Assign) and ast.unparse(other.targets[0]) == said:
            made = any(
                isinstance(above, ast.FunctionDef) and above.name == "__init__"
                for above in tree.up(other)
            )
            if not made:
                return False
    return True


def _assigned(name: str, scope: ast.AST) -> list[ast.AST]:
    """What is assigned to a name; anything but a plain assignment counts as computed."""
    found: list[ast.AST] = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            if any(_is(item, name) for item in node.targets):
                found.append(node.value)
            elif any(_is(item, name) for target in node.targets for item in ast.walk(target)):
                found.append(node)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For)) and _is(node.target, name):
            plain = isinstance(node, ast.AnnAssign) and node.value is not None
            found.append(node.value if plain else node)  # type: ignore[union-attr, arg-type]
    return found


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _passed(
    name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, levels: Sequence[Level]
) -> ast.AST | str | None:
    """What the caller passes for a parameter; "default" where it passes nothing."""
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    names_only = [item.arg for item in function.args.kwonlyargs]
    if name not in names and name not in names_only:
        return None
    call = levels[1].node if len(levels) > 1 else None
    if not isinstance(call, ast.Call):
        return None
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    unpacked = any(isinstance(item, ast.Starred) for item in call.args)
    if unpacked or any(keyword.arg is None for keyword in call.keywords):
        return call  # who is who cannot be read from it
    if name in names:
        at = names.index(name)
        if names[:1] in (["self"], ["cls"]):
            at -= 1
        if 0 <= at < len(call.args):
            return call.args[at]
    return "default"


def _function(level: Level, tree: Tree) -> ast.AST | None:
    if level.node is None:
        return None
    for above in tree.up(level.node):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return above
    return None


def _module(node: ast.AST, tree: Tree) -> ast.AST | None:
    top: ast.AST | None = None
    for above in tree.up(node):
        top = above
    return top
