"""The lines of source around a finding, with the expression it is about underlined."""

from __future__ import annotations

import ast
import difflib
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from headway.core.findings import Finding, SourceEdit

BEFORE, AFTER = 2, 1
"""Lines shown before and after the line of a finding."""
MAX_BYTES = 1 << 21
"""A larger file is not source that a person wrote."""
LABELS = {"HD501": "first used here"}
"""Where the line of a finding is not at fault: what it does."""
MADE_BY_CONSTANT = "A constant in the code"
"""How the explanation of a value begins that the line itself writes."""
_OPERATORS: Mapping[str, tuple[type[ast.AST], ...]] = {
    "div": (ast.Div, ast.FloorDiv),
    "true_divide": (ast.Div,),
    "mul": (ast.Mult,),
    "sub": (ast.Sub,),
    "rsub": (ast.Sub,),
    "add": (ast.Add,),
    "pow": (ast.Pow,),
    "matmul": (ast.MatMult,),
    "mm": (ast.MatMult,),
}
"""Ops that a line may write as an operator."""


@dataclass(frozen=True, slots=True)
class CodeFrameLine:
    """One line of a frame."""

    number: int
    text: str
    column: int = 0
    """First column of the underlined expression, counted from 1; 0 if nothing is underlined."""
    width: int = 0
    label: str = ""
    """What the underlined expression does."""
    main: bool = False
    """Whether it is the line of the finding; another underlined line takes part in it."""
    file: str = ""
    """The file, if it is another one than that of the line before."""


def frame_of(finding: Finding) -> list[CodeFrameLine]:
    """The lines around a finding; empty if its source is unknown or has changed since."""
    where = finding.where
    if where.file is None or where.line is None:
        return []
    lines = source_lines(where.file)
    if not 0 < where.line <= len(lines):
        return []
    recorded = finding.evidence.get("source")
    at = lines[where.line - 1]
    if isinstance(recorded, str) and recorded.strip() and recorded.strip() != at.strip():
        return []
    made = str(finding.evidence.get("why", "")).startswith(MADE_BY_CONSTANT)
    computed = "why" in finding.evidence and finding.evidence.get("batch_is_finite")
    label = "created here" if computed else LABELS.get(finding.code, "")
    label = "written here" if made else label
    main = _underline(lines, where.line, where.op, label=label, main=True)
    first = max(where.line - BEFORE, 1)
    numbers = range(first, min(where.line + AFTER, len(lines)) + 1)
    shown = [main if n == where.line else CodeFrameLine(n, _text(lines, n)) for n in numbers]
    while not shown[0].text.strip() and not shown[0].column:
        shown.pop(0)
    while not shown[-1].text.strip() and not shown[-1].column:
        shown.pop()
    return _with_second(finding, lines, shown)


def _with_second(
    finding: Finding, lines: list[str], shown: list[CodeFrameLine]
) -> list[CodeFrameLine]:
    """The frame with a second line that takes part in the fault, where the evidence names one."""
    evidence, where = finding.evidence, finding.where
    file, line = evidence.get("made_at_file"), evidence.get("made_at_line")
    if (
        not isinstance(file, str)
        or not isinstance(line, int)
        or (file, line)
        == (
            where.file,
            where.line,
        )
    ):
        return shown
    source = lines if file == where.file else source_lines(file)
    if not 0 < line <= len(source):
        return shown
    op = evidence.get("made_by")
    label = f"{op} here" if isinstance(op, str) else "created here"
    second = _underline(source, line, op if isinstance(op, str) else None, label=label)
    if file != where.file:
        return [*shown, replace(second, file=file)]
    others = [item for item in shown if item.number != line]
    return sorted([*others, second], key=lambda item: item.number)


def _underline(
    lines: list[str], line: int, op: str | None, *, label: str, main: bool = False
) -> CodeFrameLine:
    at = lines[line - 1]
    column, width = _span("\n".join(lines), line, op) or _whole(at)
    before = len(at[: column - 1].expandtabs(4)) + 1
    return CodeFrameLine(line, _text(lines, line), before, width, label, main)


def _text(lines: list[str], number: int) -> str:
    return lines[number - 1].expandtabs(4)


def source_lines(file: str) -> list[str]:
    """The lines of a source file; none if it cannot be read or is no source."""
    # Without a modification time: text that is on no disk, such as a cell of a notebook.
    entry = linecache.cache.get(file)
    if entry is not None and len(entry) == 4 and entry[1] is None:
        return [line.rstrip("\n") for line in entry[2]]
    return _read_lines(file)


@lru_cache(maxsize=16)
def _read_lines(file: str) -> list[str]:
    path = Path(file)
    try:
        if path.suffix not in (".py", ".pyw", "") or path.stat().st_size > MAX_BYTES:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []


@lru_cache(maxsize=16)
def source_tree(text: str) -> ast.Module | None:
    """The syntax tree of a source text; None if it cannot be parsed."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _span(text: str, line: int, op: str | None) -> tuple[int, int] | None:
    """(column, width) of the innermost expression on this line that runs the op."""
    tree = source_tree(text)
    if tree is None or op is None:
        return None
    found = [node for node in _expressions(tree, line) if _runs(node, op.rstrip("_"))]
    if not found:
        return None
    node = min(found, key=lambda node: (node.end_col_offset or 0) - node.col_offset)
    row = text.split("\n")[line - 1].encode("utf-8")
    begin = len(row[: node.col_offset].decode("utf-8", errors="replace"))
    same = node.end_lineno == line
    end = len(row[: node.end_col_offset].decode("utf-8", errors="replace")) if same else None
    stop = len(row.decode("utf-8").rstrip()) if end is None else end
    return begin + 1, max(stop - begin, 1)


def _expressions(tree: ast.Module, line: int) -> Iterator[Any]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Call, ast.BinOp)) and node.lineno == line:
            yield node


def _runs(node: Any, op: str) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _OPERATORS.get(op, ()))
    called = node.func
    name = str(getattr(called, "attr", None) or getattr(called, "id", ""))
    return bool(name) and name.rstrip("_") == op


def _whole(line: str) -> tuple[int, int]:
    """The statement on a line, without its indentation and a comment at its end."""
    bare = line.strip()
    begin = len(line) - len(line.lstrip())
    code = bare.split("  #")[0].rstrip()
    return begin + 1, max(len(code), 1)


# A fix as a diff.

MAX_DIFF_LINES = 8


def edit_diff(edits: Sequence[SourceEdit]) -> list[str]:
    """The removed and added lines of edits of one file, from the lines that the edits contain.

    No file is opened: the user may have changed it since, and a log may name any.
    """
    if not edits or len({edit.file for edit in edits}) > 1:
        return []
    parts: list[_EditedPart] = []
    for edit in sorted(edits, key=lambda edit: edit.start):
        if edit.lines is None:
            return []
        begin = edit.start - edit.column
        if parts and begin < parts[-1].end:
            parts[-1].edits.append(edit)
            parts[-1].text += edit.lines[parts[-1].end - begin :]
        else:
            parts.append(_EditedPart(begin, edit.lines, [edit]))
    kept = [line for part in parts for line in part.diff()]
    return kept if len(kept) <= MAX_DIFF_LINES else [*kept[:MAX_DIFF_LINES], "  …"]


@dataclass(slots=True)
class _EditedPart:
    """Whole lines of a file, and the edits in them."""

    begin: int
    text: str
    edits: list[SourceEdit]

    @property
    def end(self) -> int:
        return self.begin + len(self.text)

    def diff(self) -> list[str]:
        changed = self.text
        for edit in reversed(self.edits):
            start, end = edit.start - self.begin, edit.end - self.begin
            changed = changed[:start] + edit.new + changed[end:]
        lines = difflib.unified_diff(self.text.splitlines(), changed.splitlines(), n=0, lineterm="")
        return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
