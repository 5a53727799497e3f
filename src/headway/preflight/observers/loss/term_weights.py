"""Where the weight of a loss component or a plain number in a sum comes from in the user's
source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from headway.preflight.observers.loss.value_names import SourceLevel, SourceTree, parse_source
from headway.torch_adapters.frames import Location, add_function_name

# The lines from which a plain number in a sum comes, read from the source.

# A number has no history. The statement that adds it names a variable; the statement that sets
# that variable, and the functions it calls, are the lines that may have made it.

Lines = tuple[int, int]


def find_number_lines(level: SourceLevel, position: int) -> list[Lines]:
    """The lines, first and last, behind the operand at a position of the sum on this line."""
    tree = parse_source(level)
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
        found += [_span(function) for function in _called_functions(expression, tree)]
    return found


def _operand(level: SourceLevel, tree: SourceTree, position: int) -> ast.AST | None:
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


def _settings(name: str, level: SourceLevel, tree: SourceTree) -> Iterator[ast.AST]:
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


def _within(node: ast.AST, level: SourceLevel, tree: SourceTree) -> bool:
    for above in tree.up(node):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return above.name == level.function
    return level.function == "<module>"


def _called_functions(node: ast.AST, tree: SourceTree) -> Iterator[ast.AST]:
    """The functions of the file that an expression calls."""
    names = {
        item.func.attr if isinstance(item.func, ast.Attribute) else getattr(item.func, "id", None)
        for item in ast.walk(node)
        if isinstance(item, ast.Call)
    }
    for other in tree.parents:
        if isinstance(other, (ast.FunctionDef, ast.AsyncFunctionDef)) and other.name in names:
            yield other


# Whether the weight of a loss component is a fixed number or follows a schedule.

# A weight of 0 that is written down is a mistake or a switch that is off. One that is computed,
# from the epoch say, is an annealing that begins at 0. The source tells which.

_A_WEIGHT = re.compile(r"weight|coef|lambda|lam|alpha|beta|gamma|scale|cfg|config|args|opt|hp|w$")


def is_fixed_weight(levels: Sequence[SourceLevel], component: Collection[str] = ()) -> bool:
    """Whether the factor in this multiplication is written down somewhere as it is.

    `component` are the names of what it weighs. False where the factor is computed, or where that
    cannot be seen.
    """
    return any(_fixed(side, levels) for side in _factors(levels, component) if _small(side))


def _factors(levels: Sequence[SourceLevel], component: Collection[str]) -> list[ast.AST]:
    """The sides of a multiplication that may be the weight."""
    if not levels or not isinstance(levels[0].node, ast.BinOp):
        return []
    product = levels[0].node
    if not isinstance(product.op, (ast.Mult, ast.Div)):
        return []
    sides: list[ast.AST] = [product.left, product.right]
    plain: list[ast.AST] = [side for side in sides if isinstance(side, ast.Constant)]
    if plain:
        return plain
    others = [side for side in sides if _called_name(side) not in component]
    if len(others) == 1:
        return others
    # `losses[k]` beside something computed is as likely the component as the weight.
    return [
        side
        for side in sides
        if not isinstance(side, ast.Subscript) or _A_WEIGHT.search(ast.unparse(side).lower())
    ]


def locate_zero_weight(
    levels: Sequence[SourceLevel], component: Collection[str] = ()
) -> dict[str, Any] | None:
    """The line that makes the factor of this multiplication 0, if it can be read which it is.

    That is where it is divided without a remainder, made a whole number, or written as 0.
    """
    for wanted in (_truncates, _is_zero):
        for side in _factors(levels, component):
            line = _line_of(side, levels, wanted)
            if line is not None:
                return add_function_name(Location(levels[0].file, line)).to_dict()
    return None


def _line_of(
    node: ast.AST, levels: Sequence[SourceLevel], wanted: Callable[[ast.AST], bool], depth: int = 0
) -> int | None:
    tree = parse_source(levels[0])
    if tree is None or depth > 4:
        return None
    if isinstance(node, ast.Call):
        made = [item for item in _returned(node, tree) if wanted(item)]
        return made[0].lineno if made else None
    name = _called_name(node)
    if name is None:
        return None
    given = list(_set_to(name, tree))
    for line, value in given:
        if wanted(value):
            return line
    for _, value in given:
        if isinstance(value, (ast.Name, ast.Attribute, ast.Call)) and _called_name(value) != name:
            further = _line_of(value, levels, wanted, depth + 1)
            if further is not None:
                return further
    return None


def _truncates(node: ast.AST) -> bool:
    for item in ast.walk(node):
        if isinstance(item, ast.BinOp) and isinstance(item.op, ast.FloorDiv):
            return True
        if isinstance(item, ast.Call) and _called_name(item.func) in ("int", "round", "floor"):
            return True
    return isinstance(node, ast.Call) and any(
        item.arg == "type" and _called_name(item.value) == "int" for item in node.keywords
    )


def _is_zero(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):  # an option of the program
        return any(item.arg == "default" and _is_zero(item.value) for item in node.keywords)
    return isinstance(node, ast.Constant) and node.value in (0, 0.0) and node.value is not False


def _called_name(node: ast.AST) -> str | None:
    """The last name in it: `weight` of `self.cfg.weight` and of `weights["weight"]`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return key.value
        return _called_name(node.value)
    return None


def _set_to(name: str, tree: SourceTree) -> Iterator[tuple[int, ast.AST]]:
    """The lines that give something of this name a value, and the value."""
    option = "--" + name.replace("_", "-")
    for node in tree.parents:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_called_name(target) == name for target in targets):
                yield node.lineno, node.value
                if isinstance(node.value, ast.Dict):
                    for value in node.value.values:
                        yield value.lineno, value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value.lineno, value
        elif isinstance(node, ast.keyword) and node.arg == name:
            yield node.value.lineno, node.value
        elif isinstance(node, ast.Call) and any(
            isinstance(item, ast.Constant) and item.value in (option, option.replace("-", "_"))
            for item in node.args
        ):
            yield node.lineno, node
        elif isinstance(node, ast.arguments):
            plain = [*node.posonlyargs, *node.args]
            pairs = list(zip(reversed(plain), reversed(node.defaults), strict=False))
            pairs += [
                (item, value)
                for item, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)
                if value is not None
            ]
            yield from ((value.lineno, value) for item, value in pairs if item.arg == name)


def _returned(call: ast.Call, tree: SourceTree) -> Iterator[ast.expr]:
    """What a function of the file gives back."""
    name = _called_name(call.func)
    for node in tree.parents:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for item in ast.walk(node):
                if isinstance(item, (ast.Return, ast.Assign)) and item.value is not None:
                    yield item.value


def _small(node: ast.AST) -> bool:
    return isinstance(node, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.UnaryOp))


def _fixed(node: ast.AST | None, levels: Sequence[SourceLevel], depth: int = 0) -> bool:
    tree = parse_source(levels[0])
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


def _named(node: ast.Name, levels: Sequence[SourceLevel], tree: SourceTree, depth: int) -> bool:
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


def _never_set(node: ast.Attribute | ast.Subscript, tree: SourceTree) -> bool:
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
    name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, levels: Sequence[SourceLevel]
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


def _function(level: SourceLevel, tree: SourceTree) -> ast.AST | None:
    if level.node is None:
        return None
    for above in tree.up(level.node):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return above
    return None


def _module(node: ast.AST, tree: SourceTree) -> ast.AST | None:
    top: ast.AST | None = None
    for above in tree.up(node):
        top = above
    return top
