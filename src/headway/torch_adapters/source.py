"""The statement at a line of user code, parsed and rewritten."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import tokenize
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from headway.torch_adapters.frames import Location

# The user's own line, rewritten for the text of a remedy.

# Only the pieces that change are replaced; the rest stays as the user wrote it.

Replacement = tuple[ast.AST, str]

_OPERATORS = {ast.Div: "div", ast.Pow: "pow", ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_LIBRARIES = {"torch", "F", "nn", "functional", "linalg", "special"}
_SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


@dataclass(frozen=True, slots=True)
class StatementCall:
    """A call, or an operator, in a line: `torch.div(a, b)`, `a.div(b)` and `a / b` are alike."""

    name: str
    node: ast.AST
    operands: Sequence[ast.expr]
    keywords: dict[str, ast.expr] = field(default_factory=dict)
    method: bool = False
    callee: ast.Attribute | ast.Name | None = None

    def operand(self, position: int, *keywords: str) -> ast.expr | None:
        """The operand at a position, or under one of these keywords."""
        if position < len(self.operands):
            return self.operands[position]
        return next((self.keywords[name] for name in keywords if name in self.keywords), None)


class Statement:
    """A statement that can be rewritten."""

    def __init__(self, text: str) -> None:
        self.text = _without_comment(text.strip())
        self._bytes = self.text.encode()
        self._tree = _parsed(self.text)

    @property
    def whole(self) -> bool:
        """It can be read by itself."""
        return self._tree is not None

    def rewritten(
        self, names: Collection[str], new: Callable[[StatementCall], Sequence[Replacement] | None]
    ) -> str | None:
        """The statement after every site of these names was changed; None where none could be."""
        found: list[tuple[int, int, str]] = []
        for node in [] if self._tree is None else ast.walk(self._tree):
            site = _statement_call(node)
            if site is None or site.name not in names:
                continue
            for target, text in new(site) or ():
                found.append((*self._span(target), text))
        found.sort(reverse=True)
        starts = [start for start, _, _ in found]
        overlap = any(end > starts[at] for at, (_, end, _) in enumerate(found[1:]))
        if not found or overlap:
            return None
        changed = self._bytes
        for start, end, text in found:
            changed = changed[:start] + text.encode() + changed[end:]
        return changed.decode()

    def of(self, node: ast.AST) -> str:
        """What the user wrote there."""
        start, end = self._span(node)
        return self._bytes[start:end].decode()

    def tight(self, node: ast.AST) -> str:
        """The same, so that a method can be called on it."""
        return self.of(node) if isinstance(node, _SIMPLE) else f"({self.of(node)})"

    def _span(self, node: ast.AST) -> tuple[int, int]:
        lines = self._bytes.splitlines(keepends=True)
        before = [sum(map(len, lines[:at])) for at in range(len(lines))]
        start = before[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = before[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end


def read_statement(place: Location | None) -> Statement:
    """The statement at a place: its line where that is a whole one, else what the file has."""
    if place is None:
        return Statement("")
    line = Statement(place.source)
    return line if line.text and line.whole else Statement(_find_statement_text(place))


def _find_statement_text(place: Location) -> str:
    lines = linecache.getlines(place.file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return ""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and not hasattr(node, "body")
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]
    if not around:
        return ""
    node = around[-1]
    return " ".join(line.strip() for line in lines[node.lineno - 1 : node.end_lineno])


def _without_comment(text: str) -> str:
    found = text
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.start[0] == 1:
                found = text[: token.start[1]].rstrip()
    return found


def _parsed(text: str) -> ast.AST | None:
    for whole in (text, f"{text} pass"):
        try:
            return ast.parse(whole)
        except (SyntaxError, ValueError):
            continue
    return None


def _statement_call(node: ast.AST) -> StatementCall | None:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return StatementCall(_OPERATORS[type(node.op)], node, [node.left, node.right])
    if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        return StatementCall(_OPERATORS[type(node.op)], node, [node.target, node.value])
    if not isinstance(node, ast.Call) or any(isinstance(arg, ast.Starred) for arg in node.args):
        return None
    keywords = {item.arg: item.value for item in node.keywords if item.arg is not None}
    callee = node.func
    if isinstance(callee, ast.Name):
        return StatementCall(callee.id, node, node.args, keywords, callee=callee)
    if not isinstance(callee, ast.Attribute):
        return None
    if _root(callee) in _LIBRARIES:
        return StatementCall(callee.attr, node, node.args, keywords, callee=callee)
    if _root(callee) == "math":
        return None
    return StatementCall(callee.attr, node, [callee.value, *node.args], keywords, True, callee)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


# User code, compiled once more.

_FUTURE_FLAGS = 0x1FF0000
"""The flags of `from __future__ import …` in a code object."""


def compile_function(
    function: ast.FunctionDef, origin: CodeType, names: dict[str, Any]
) -> FunctionType:
    """The function that a syntax tree defines, as if it stood beside the code it was taken from.

    It has the file, the future imports and the global variables of that code (`names`). Raises
    SyntaxError or ValueError where Python refuses the tree: the caller does without the function.
    """
    module = ast.Module(body=[function], type_ignores=[])
    ast.fix_missing_locations(module)
    flags = origin.co_flags & _FUTURE_FLAGS
    built = compile(module, origin.co_filename, "exec", flags=flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(built, names, made)
    result: FunctionType = made[function.name]
    result.__code__ = result.__code__.replace(co_name=origin.co_name)  # it may be `<module>`
    return result
