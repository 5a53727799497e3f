"""The statement at a line of user code, parsed and rewritten."""

from __future__ import annotations

import ast
import bisect
import contextlib
import hashlib
import io
import itertools
import linecache
import os
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from headway.core.findings import SourceEdit
from headway.torch_adapters.frames import Location

if TYPE_CHECKING:
    from typing_extensions import Self

# The user's own line, rewritten for the text of a remedy.

# Only the pieces that change are replaced; the rest stays as the user wrote it.

Replacement = tuple[ast.AST, str]

_OPERATORS = {ast.Div: "div", ast.Pow: "pow", ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_LIBRARIES = {"torch", "F", "nn", "functional", "linalg", "special"}
_SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


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


Span = tuple[int, int, str]
"""First character, the one after the last, and the text that replaces them."""


class SourceText:
    """Source code with the positions of its syntax tree as indices of characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Python ends lines at \r, \n or both only; str.splitlines knows more separators.
        self._lines = [match[0] for match in _LINE.finditer(text)] or [""]
        self._starts = list(itertools.accumulate(map(len, self._lines), initial=0))

    def index(self, line: int, column: int) -> int:
        """The index of a character; `column` counts the bytes of UTF-8, as syntax trees do."""
        before = self._lines[line - 1].encode()[:column].decode(errors="ignore")
        return self._starts[line - 1] + len(before)

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self.index(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        end = self.index(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        return start, end

    def of(self, node: ast.AST) -> str:
        """What the user wrote there."""
        start, end = self.span(node)
        return self.text[start:end]

    def tight(self, node: ast.AST) -> str:
        """The same, so that a method can be called on it."""
        return self.of(node) if isinstance(node, _SIMPLE) else f"({self.of(node)})"

    def replaced(self, spans: Iterable[Span]) -> str:
        """The text after these replacements, which do not overlap."""
        text = self.text
        for start, end, new in sorted(spans, reverse=True):
            text = text[:start] + new + text[end:]
        return text


class Statement(SourceText):
    """A statement that can be rewritten."""

    def __init__(self, text: str) -> None:
        super().__init__(_without_comment(text.strip()))
        self._tree = _parsed(self.text)

    @property
    def whole(self) -> bool:
        """It can be read by itself."""
        return self._tree is not None

    def rewritten(
        self, names: Collection[str], new: Callable[[StatementCall], Sequence[Replacement] | None]
    ) -> str | None:
        """The statement after every site of these names was changed; None where none could be."""
        found = self.replacements(names, new)
        return None if found is None else self.replaced(found)

    def replacements(
        self, names: Collection[str], new: Callable[[StatementCall], Sequence[Replacement] | None]
    ) -> list[Span] | None:
        """What changes at the sites of these names; None where nothing can be changed."""
        found = sorted(span for site in self.by_site(names, new) for span in site)
        overlap = any(one[1] > other[0] for one, other in itertools.pairwise(found))
        return None if not found or overlap else found

    def by_site(
        self, names: Collection[str], new: Callable[[StatementCall], Sequence[Replacement] | None]
    ) -> list[list[Span]]:
        """The same for each site alone: sites can be inside of each other."""
        sites = [_statement_call(node) for node in self._nodes()]
        changed = [new(site) or () for site in sites if site is not None and site.name in names]
        return [[(*self.span(target), text) for target, text in some] for some in changed if some]

    def _nodes(self) -> Iterator[ast.AST]:
        return iter(()) if self._tree is None else ast.walk(self._tree)


class FileStatement(Statement):
    """A statement in its file: what changes in it is an edit of the file."""

    def __init__(self, file: SourceFile, node: ast.stmt) -> None:
        SourceText.__init__(self, file.text)
        self._tree = self.node = node

    def _nodes(self) -> Iterator[ast.AST]:
        for name, value in ast.iter_fields(self.node):
            if name in _BLOCKS:  # other statements
                continue
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    yield from ast.walk(item)
        yield self.node  # `x /= n`


MAX_EDITED_LINES = 4000
"""Characters of the lines that are kept with an edit."""
OVERLAID: dict[str, bytes] = {}
"""Contents that files have for this process only; `source_overlay.py` sets them."""


class SourceFile(SourceText):
    """A Python file as it is on disk."""

    def __init__(self, path: str, content: bytes) -> None:
        """Raises SyntaxError or ValueError where it is not Python."""
        self.path = path
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        super().__init__(content.decode(self.encoding))
        self.tree = ast.parse(self.text)

    @classmethod
    def read(cls, path: str) -> Self | None:
        """The file; None if it cannot be read or is not Python."""
        try:
            content = OVERLAID.get(os.path.abspath(path))
            if content is None:
                with open(path, "rb") as file:
                    content = file.read()
            return cls(path, content)
        except (OSError, SyntaxError, ValueError):
            return None

    def statement_at(self, line: int) -> FileStatement | None:
        """The innermost statement on a line."""
        around = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.stmt) and node.lineno <= line <= _last_line_of_head(node)
        ]
        return FileStatement(self, around[-1]) if around else None

    def line(self, number: int) -> str:
        """The text of a line; empty if there is none."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    def edit(self, start: int, end: int, new: str) -> SourceEdit:
        """The edit, with the lines that it changes."""
        first = bisect.bisect_right(self._starts, start, hi=len(self._lines)) - 1
        last = bisect.bisect_right(self._starts, end, hi=len(self._lines)) - 1
        lines = "".join(self._lines[first : last + 1]).rstrip("\r\n")
        column = start - self._starts[first]
        kept = lines if len(lines) <= MAX_EDITED_LINES else None
        path = os.path.abspath(self.path)
        return SourceEdit(path, start, end, new, self.sha256, kept, column)


def _last_line_of_head(node: ast.stmt) -> int:
    """The last line of a statement, without the statements it contains."""
    body = getattr(node, "body", None)
    last = node.end_lineno or node.lineno
    return min(body[0].lineno - 1, last) if isinstance(body, list) and body else last


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


# User code, compiled again.

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
