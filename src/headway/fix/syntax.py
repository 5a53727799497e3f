"""Finds statements and calls in a file, and writes changes of whole statements as edits."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from headway.core.findings import SourceEdit
from headway.torch_adapters.source import SourceFile, Span

LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class SyntaxFile(SourceFile):
    """A file whose nodes know their parents."""

    def __init__(self, path: str, content: bytes) -> None:
        super().__init__(path, content)
        self._parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    # Finding.

    def nodes(self, *kinds: type[ast.AST], within: ast.AST | None = None) -> Iterator[ast.AST]:
        """Nodes of these kinds in the order of the file."""
        found = [node for node in ast.walk(within or self.tree) if isinstance(node, kinds)]
        return iter(sorted(found, key=lambda node: (node.lineno, node.col_offset)))  # type: ignore[attr-defined]

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Calls of these functions or methods: `step` finds `optimizer.step()`."""
        for node in self.nodes(ast.Call, within=within):
            assert isinstance(node, ast.Call)
            if callee(node) in names:
                yield node

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that contains a node, or is it."""
        found = node if isinstance(node, ast.stmt) else None
        return found or next(item for item in self.around(node) if isinstance(item, ast.stmt))

    def block(self, statement: ast.stmt) -> Sequence[ast.stmt]:
        """The statements of the block that a statement is in."""
        parent = self._parents[statement]
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and statement in value:
                return value
        return [statement]

    def loop(self, node: ast.AST) -> ast.stmt | None:
        """The innermost loop around a node, in the same function."""
        for item in self.around(node):
            if isinstance(item, LOOPS):
                return item
            if isinstance(item, FUNCTIONS):
                return None
        return None

    def function(self, node: ast.AST) -> ast.AST:
        """The function around a node, or the module."""
        return next((item for item in self.around(node) if isinstance(item, FUNCTIONS)), self.tree)

    def at(self, line: int | None) -> ast.stmt | None:
        """The innermost statement on a line."""
        found = None if line is None else self.statement_at(line)
        return None if found is None else found.node

    def values_of(self, name: str) -> Iterator[ast.expr]:
        """The expressions that are assigned to a name: `model` or `self.model`."""
        for node in self.nodes(ast.Assign, ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
            value = node.value  # type: ignore[attr-defined]
            if value is not None and any(self.of(target) == name for target in targets):
                yield value

    # Changing.

    def edits(self, *spans: Span | None) -> tuple[SourceEdit, ...]:
        """Edits of these spans; none if one is missing or two overlap."""
        found = sorted(span for span in spans if span is not None)
        overlap = any(one[1] > other[0] for one, other in itertools.pairwise(found))
        if len(found) < len(spans) or overlap:
            return ()
        return tuple(self.edit(*span) for span in found)

    def replace(self, node: ast.AST, text: str) -> Span:
        return (*self.span(node), text)

    def insert_before(self, statement: ast.stmt, text: str) -> Span | None:
        """A new line before a statement; None if the statement shares its line."""
        first = self._first_line(statement)
        if first is None:
            return None
        start, indent = first
        return start, start, f"{indent}{text}{self._newline}"

    def insert_after(self, statement: ast.stmt, text: str) -> Span | None:
        """A new line after a statement."""
        first = self._first_line(statement)
        end = self._line_end(statement)
        if first is None or end is None:
            return None
        ends = self.text[:end].endswith(("\n", "\r"))
        return end, end, f"{'' if ends else self._newline}{first[1]}{text}{self._newline}"

    def delete(self, statement: ast.stmt) -> Span | None:
        """Without the lines of a statement; None if another one shares them, or none is left."""
        first, end = self._first_line(statement), self._line_end(statement)
        if first is None or end is None or len(self.block(statement)) == 1:
            return None
        return first[0], end, ""

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def _first_line(self, statement: ast.stmt) -> tuple[int, str] | None:
        start, _ = self.span(statement)
        begin = self.index(statement.lineno, 0)
        indent = self.text[begin:start]
        return (begin, indent) if not indent.strip() else None

    def _line_end(self, statement: ast.stmt) -> int | None:
        """The end of its last line; None if another statement follows on it."""
        _, end = self.span(statement)
        line = statement.end_lineno or statement.lineno
        last = self.index(line, 0) + len(self.line(line))
        rest = self.text[end:last].strip()
        return last if not rest or rest.startswith("#") else None


def callee(node: ast.AST) -> str:
    """The last name of what is called: `step` for `self.optimizer.step()`."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def receiver(node: ast.Call) -> ast.expr | None:
    """What a method is called on."""
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def keyword(node: ast.Call, name: str) -> ast.keyword | None:
    return next((item for item in node.keywords if item.arg == name), None)


def with_keyword(file: SyntaxFile, node: ast.Call, name: str, value: str) -> Span:
    """The call with a keyword argument set."""
    given = keyword(node, name)
    if given is not None:
        return file.replace(given.value, value)
    arguments = [*node.args, *node.keywords]
    _, end = file.span(node)
    if not arguments:
        return end - 1, end - 1, f"{name}={value}"
    last = max(file.span(item)[1] for item in arguments)
    return last, last, f", {name}={value}"


def without_argument(file: SyntaxFile, node: ast.Call, argument: ast.expr) -> Span:
    """The call without one of its positional arguments."""
    at = node.args.index(argument)
    start, end = file.span(argument)
    if at > 0:
        return file.span(node.args[at - 1])[1], end, ""
    if len(node.args) > 1:
        return start, file.span(node.args[1])[0], ""
    return start, end, ""
