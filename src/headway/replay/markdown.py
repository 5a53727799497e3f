"""Text of strangers in Markdown: names, messages and source lines as they are, and never markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from headway.sinks.plain import clean

_SIGNS = re.compile(r"([\\`*<>\[\]|$])")
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Within a word it is no emphasis: log_softmax stays readable."""
_ENTITY = re.compile(r"&(?=#?\w+;)")
_STRIKE = re.compile(r"~(?=~)|(?<=~)~")
_LINK = re.compile(r"(?i)(?<=[a-z]):(?=//)|(?<=www)\.|(?<=\w)@(?=\w)|@(?=\w)")
_BEGINNING = re.compile(r"^(\s*)(#|>|[-+=](?=\s|[-+=]|$)|\d+(?=[.)]))")


def prose(text: object) -> str:
    """Words within a paragraph, an item of a list or a cell of a table."""
    said = _SIGNS.sub(r"\\\1", " ".join(clean(text).split()))
    for pattern, instead in (
        (_UNDERSCORE, r"\\_"),
        (_ENTITY, r"\\&"),
        (_STRIKE, r"\\~"),
        (_LINK, lambda found: "\\" + found[0]),
    ):
        said = pattern.sub(instead, said)
    return _BEGINNING.sub(_escape_beginning, said)


def _escape_beginning(found: re.Match[str]) -> str:
    if found[2][0].isdigit():  # a number with a dot after it would begin a list
        return f"{found[1]}{found[2]}\\"
    return f"{found[1]}\\{found[2]}"


def code(text: object) -> str:
    """A name, exactly as it is written."""
    said = " ".join(clean(text).split())
    if not said:
        return ""
    ticks = "`" * (_longest_run(said) + 1)
    room = " " if said.startswith("`") or said.endswith("`") else ""
    return f"{ticks}{room}{said}{room}{ticks}"


def cell(text: str) -> str:
    """A code span in a table, where a bar would end the cell."""
    return text.replace("|", "\\|")


def block(lines: Iterable[str], language: str = "") -> list[str]:
    """Lines of code, in a fence that they cannot close."""
    body = [clean(line.expandtabs(4)) for line in lines]
    fence = "`" * max(3, max(map(_longest_run, body), default=0) + 1)
    return [f"{fence}{language}", *body, fence]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, its columns aligned so that it reads well as plain text, too."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(head))]
    lines = [
        "| " + " | ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [lines[0], rule, *lines[1:]]


def _longest_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)
