"""Findings that are known and accepted: comments in the source, and the baseline file."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway import registry
from headway._version import __version__
from headway.core.findings import Finding, Severity, Where
from headway.errors import SettingsError, UsageError
from headway.output.code_frame import source_lines, source_tree

COMMENT, BASELINE = "comment", "baseline"
DEFAULT_BASELINE = "headway-baseline.json"
BASELINE_SCHEMA = 1
_IGNORE = re.compile(r"#\s*headway:\s*ignore\b\s*(?:\[(?P<codes>[^\]]*)\])?[\s:]*(?P<reason>[^#]*)")


@dataclass(frozen=True, slots=True)
class SuppressedFinding:
    """A finding that a comment or the baseline accepts: it is counted and does not fail."""

    finding: Finding
    by: str
    """`comment` or `baseline`."""
    reason: str = ""
    """The text after the codes of a comment."""

    def to_dict(self) -> dict[str, Any]:
        return {**self.finding.to_dict(), "suppressed_by": self.by, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class UnusedSuppression:
    """A comment, or one code of it, that suppresses nothing."""

    file: str
    line: int
    code: str
    """Empty if the comment names no code."""
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


# Comments: `# headway: ignore[HD207, HD103] why it is fine here`.


@dataclass(frozen=True, slots=True)
class SuppressionComment:
    """One comment, and the lines of the statement it belongs to."""

    line: int
    first: int
    last: int
    codes: tuple[str, ...]
    reason: str


def comments_in(file: str) -> list[SuppressionComment]:
    """The suppressing comments of a source file; none if it cannot be read."""
    lines = source_lines(file)
    if not any("headway:" in line for line in lines):
        return []
    text = "\n".join(lines) + "\n"
    tree = source_tree(text)
    found = []
    for line, comment in _comment_tokens(text):
        if match := _IGNORE.search(comment):
            words = re.split(r"[\s,]+", match["codes"] or "")
            codes = tuple(word.upper() for word in words if word)
            first, last = _statement_lines(tree, line)
            found.append(SuppressionComment(line, first, last, codes, match["reason"].strip()))
    return found


def _comment_tokens(text: str) -> Iterator[tuple[int, str]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError):  # not Python; what came before counts
        return


def _statement_lines(tree: ast.Module | None, line: int) -> tuple[int, int]:
    """First and last line of the statement on this line; of a block, only those of its header."""
    best = (line, line)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.stmt):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:
            last = max(first, body[0].lineno - 1)
        if first <= line <= last:
            best = (first, last)  # `walk` visits the outer statement first
    return best


# The baseline: findings that were known when it was written.

_Key = tuple[str, ...]
_KEY_NAMES = ("code", "file", "function", "module", "subject", "source")


@dataclass(frozen=True)
class Baseline:
    """Findings that were known before, and how many of each.

    A finding is recognised by its code, its file, its function, its module, what it is about and
    the text of its line, not by the number of the line.
    """

    counts: Mapping[_Key, int]
    folder: Path = field(default_factory=Path.cwd)
    """Files are relative to it."""

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Raises SettingsError if it cannot be read."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SettingsError(
                f"the baseline {path} does not exist: create it with --write-baseline"
            ) from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"cannot read the baseline {path}: {error}") from error
        rows = data.get("findings") if isinstance(data, dict) else None
        if not isinstance(rows, list) or data.get("schema") != BASELINE_SCHEMA:
            raise SettingsError(
                f"{path} is not a baseline of this version: write it again with --write-baseline"
            )
        counts: dict[_Key, int] = {}
        for row in rows:
            entry = row if isinstance(row, dict) else {}
            key = tuple(str(entry[name]) for name in _KEY_NAMES if name in entry)
            count = entry.get("count", 1)
            if type(count) is not int or len(key) < len(_KEY_NAMES):
                raise SettingsError(f"{path}: an entry of the baseline is damaged: {row!r}")
            counts[key] = count
        return cls(counts, path.absolute().parent)

    @classmethod
    def of(cls, reports: Iterable[Sequence[Finding]], folder: Path) -> Baseline:
        """The warnings and errors of reports; of two reports, the larger count."""
        empty = cls({}, folder)
        counts: Counter[_Key] = Counter()
        for findings in reports:
            bad = [item for item in findings if item.severity >= Severity.WARNING]
            counts |= Counter(empty.key(item) for item in bad)
        return cls(counts, folder)

    def write(self, path: Path) -> None:
        """Raises UsageError if the file cannot be written."""
        rows = [
            {**dict(zip(_KEY_NAMES, key, strict=True)), "count": self.counts[key]}
            for key in sorted(self.counts)
        ]
        head = {"schema": BASELINE_SCHEMA, "tool": "headway", "version": __version__}
        text = json.dumps({**head, "findings": rows}, indent=2) + "\n"
        try:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(
                f"cannot write the baseline {path}: {error.strerror or error}"
            ) from error

    def key(self, finding: Finding) -> _Key:
        """What a finding is recognised by."""
        where = finding.where
        file = _relative(where.file, self.folder) if where.file else ""
        return (
            finding.code,
            file,
            where.function or "",
            where.module or "",
            _without_place(finding.subject, where.file),
            _source_text(finding),
        )


def _without_place(subject: str, file: str | None) -> str:
    """`cross_entropy` of `cross_entropy /home/me/train.py:9`: lines move, and so do folders."""
    bare = subject.replace(file, "x.py") if file else subject
    return re.sub(r"\S+\.py(:\d+)?", "", bare).strip()


def _relative(file: str, folder: Path) -> str:
    try:
        return Path(os.path.relpath(Path(file).resolve(), folder.resolve())).as_posix()
    except (OSError, ValueError):  # on another drive
        return file


def _source_text(finding: Finding) -> str:
    """The line of a finding as it was when the run recorded it, or as it is now."""
    recorded = finding.evidence.get("source")
    if isinstance(recorded, str) and recorded.strip():
        return _without_comment(recorded)
    return _line_now(finding.where)


def _line_now(where: Where) -> str:
    line = where.line or 0
    lines = source_lines(where.file) if where.file else []
    return _without_comment(lines[line - 1]) if 0 < line <= len(lines) else ""


def _without_comment(line: str) -> str:
    return line.partition("#")[0].strip()


# Both together.


def split_known(
    findings: Sequence[Finding],
    *,
    baseline: Baseline | None,
    files: Iterable[str],
    ran: Collection[str],
    is_ending: Callable[[Finding], bool],
) -> tuple[list[Finding], list[SuppressedFinding], list[UnusedSuppression]]:
    """(findings to report, those suppressed, comments that suppress nothing).

    `files`: source files whose unused comments are reported, besides those with findings.
    `ran`: codes of the checks that ran; a comment for another check may be of use elsewhere.
    `is_ending`: whether a finding says how the run ended. Such a finding is always reported.
    """
    comments = {
        file: comments_in(file)
        for file in dict.fromkeys([*files, *(item.where.file for item in findings)])
        if file is not None
    }
    used: set[tuple[str, int, str]] = set()
    left = Counter(dict(baseline.counts)) if baseline is not None else Counter()
    kept: list[Finding] = []
    suppressed: list[SuppressedFinding] = []
    for finding in findings:
        comment = None if is_ending(finding) else _comment_for(finding, comments)
        if comment is not None and finding.where.file is not None:
            used.add((finding.where.file, comment.line, finding.code))
            suppressed.append(SuppressedFinding(finding, COMMENT, comment.reason))
        elif baseline is not None and not is_ending(finding) and left[baseline.key(finding)] > 0:
            left[baseline.key(finding)] -= 1
            suppressed.append(SuppressedFinding(finding, BASELINE))
        else:
            kept.append(finding)
    unused = [
        UnusedSuppression(file, comment.line, code, why)
        for file, those in comments.items()
        for comment in those
        for code in comment.codes or ("",)
        if (file, comment.line, code) not in used
        if code in ran or registry.find(code) is None
        for why in [_why_unused(code, kept)]
    ]
    return kept, suppressed, unused


def _comment_for(
    finding: Finding, comments: Mapping[str, Sequence[SuppressionComment]]
) -> SuppressionComment | None:
    where = finding.where
    if where.file is None or where.line is None:
        return None
    if _source_text(finding) != _line_now(where):
        return None  # the file has changed since
    for comment in comments.get(where.file, ()):
        if comment.first <= where.line <= comment.last and finding.code in comment.codes:
            return comment
    return None


def _why_unused(code: str, kept: Sequence[Finding]) -> str:
    if not code:
        return "names no code: write `# headway: ignore[HD207]`"
    if registry.find(code) is None:
        return f"no check has the code {code}"
    if any(item.code == code for item in kept):
        return f"{code} was found, but not on this line, or it says how the run ended"
    return f"{code} was not found here"
