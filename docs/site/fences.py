"""The fenced blocks of a page, and what their info strings ask for.

    ```python file="train.py"         is written to that file, not run on the spot
    ```python no-run="needs a GPU"    cannot be run by a test, and why
    ```text output                    what the block before it prints
    ```console exit=1                 the exit code the block's last command ends with

The site shows none of this but the file's name; tests/docs runs all blocks by it. A code host shows
the language and ignores the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_OPENING = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)$")
_OPTION = re.compile(r"""(?P<name>[\w-]+)(?:=(?:"(?P<quoted>[^"]*)"|(?P<bare>\S+)))?""")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    line: int
    """Of its opening fence, from 1."""
    language: str
    text: str
    options: dict[str, str] = field(default_factory=dict)


def blocks(markdown: str) -> Iterator[Block]:
    """The blocks of a page in order. A fence of four ticks may hold one of three."""
    lines = markdown.splitlines()
    at = 0
    while at < len(lines):
        opening = _OPENING.match(lines[at])
        if opening is None:
            at += 1
            continue
        start, indent = at, len(opening["indent"])
        at += 1
        while at < len(lines) and lines[at].strip() != opening["ticks"]:
            at += 1
        if at == len(lines):
            raise ValueError(f"line {start + 1}: the block that begins here never ends")
        language, options = read_info(opening["info"])
        body = "".join(f"{line[indent:]}\n" for line in lines[start + 1 : at])
        yield Block(start + 1, language, body, options)
        at += 1


def read_info(info: str) -> tuple[str, dict[str, str]]:
    """The language and the options of an info string."""
    language, _, rest = info.strip().partition(" ")
    options = {
        match["name"]: match["quoted"] if match["quoted"] is not None else match["bare"] or ""
        for match in _OPTION.finditer(rest)
    }
    return language, options


def for_display(markdown: str) -> str:
    """The page with info strings that a Markdown renderer understands."""
    shown, closing = [], ""
    for line in markdown.splitlines():
        opening = _OPENING.match(line)
        if closing:
            closing = "" if line.strip() == closing else closing
        elif opening is not None:
            closing = opening["ticks"]
            language, options = read_info(opening["info"])
            title = f' title="{options["file"]}"' if "file" in options else ""
            line = f"{opening['indent']}{closing}{language or 'text'}{title}"
        shown.append(line)
    return "\n".join(shown) + "\n"
