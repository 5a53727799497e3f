"""The little Markdown that docstrings use, on a page: headings, paragraphs, lists, code, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headway.sinks.page import Page, Part

_BULLET = re.compile(r"^(?:[-*]|\d+\.)\s+")


def write_markdown(text: str, page: Page) -> None:
    """Write it: headings at the margin, what belongs to them indented."""
    margin = ""
    for number, block in enumerate(_blocks(text)):
        first = block[0]
        if number and not (margin == "  " and _BULLET.match(first)):
            page.gap()
        if first.startswith("#"):
            page.line((first.lstrip("# "), "bold"))
            margin = "  "
            block = block[1:]
        _write_block(block, page, margin)


def _write_block(block: list[str], page: Page, margin: str) -> None:
    if not block:
        return
    if block[0].startswith(("```", "    ", "|")):
        for line in block:
            if not line.startswith("```"):
                page.console.print(margin + line, soft_wrap=True)
        return
    bullet = _BULLET.match(block[0])
    hang = margin + " " * (len(bullet[0]) if bullet else 0)
    page.line(*_inline(" ".join(line.strip() for line in block)), first=margin, rest=hang)


def _blocks(text: str) -> Iterator[list[str]]:
    """Lines that belong together: a heading with its paragraph, a list item, a block of code."""
    block: list[str] = []
    fenced = False
    for line in text.splitlines():
        starts = not fenced and (line.startswith(("#", "```")) or bool(_BULLET.match(line)))
        if (starts or (not line.strip() and not fenced)) and block:
            yield block
            block = []
        if line.strip() or fenced:
            block.append(line)
        if line.startswith("```"):
            fenced = not fenced
            if not fenced:
                yield block
                block = []
    if block:
        yield block


def _inline(text: str) -> list[Part]:
    """`code`, **bold** and *emphasis* by style instead of by sign."""
    parts: list[Part] = []
    for number, piece in enumerate(re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", text)):
        if number % 2 == 0:
            parts.append(piece)
        elif piece.startswith("`"):
            # The marks stay: without colour they are all that tells a name from a word.
            parts.append((piece, "cyan"))
        else:
            parts.append((piece.strip("*"), "bold"))
    return parts
