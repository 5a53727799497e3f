"""Looking a line up in a user's own collate function: where it takes a sample, where it scales."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from headway.torch_tools.places import Place, is_machinery, with_function


def taking_line(function: Any) -> dict[str, Any] | None:
    """The line that takes one sample out of many (`rows[0]`), or where the function begins."""
    return _line(function, _takes_one) or _line(function, lambda node: True)


def scaling_line(function: Any) -> dict[str, Any] | None:
    """The first line that divides or multiplies."""
    return _line(function, _scales)


def _line(function: Any, wanted: Callable[[ast.AST], bool]) -> dict[str, Any] | None:
    try:
        routine = function if inspect.isroutine(function) else type(function).__call__
        lines, first = inspect.getsourcelines(routine)
        file = inspect.getsourcefile(routine) or ""
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, AttributeError, TypeError, SyntaxError, ValueError):
        return None
    if is_machinery(file):
        return None
    found = [node.lineno for node in ast.walk(tree) if hasattr(node, "lineno") and wanted(node)]
    if not found:
        return None
    return with_function(Place(file, first + min(found) - 1)).to_dict()


def _takes_one(node: ast.AST) -> bool:
    index = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return isinstance(index, ast.Constant) and isinstance(index.value, int)


def _scales(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("div", "div_", "mul", "mul_")
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult))
