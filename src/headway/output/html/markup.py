"""Builds escaped HTML: elements, and the tables, buttons and folded parts that sections are made
of.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.numbers import encode_numbers, say, say_bytes
from headway.output.display_text import clean
from headway.rundir.chart_data import ChartData

# HTML from Python, with no way to forget the escaping.

# Text becomes markup in one place only, `Node`, and there it is cleaned and escaped. Names of
# parameters, messages and lines of logs are other people's text.

VOID = ("br", "col", "meta")
LONGEST = 1200
"""Characters of one piece of text; a page is for reading."""
_NAME = re.compile(r"^[a-z][a-z0-9-]*$")


@dataclass(frozen=True, slots=True)
class HtmlNode:
    """Finished markup. Made by `tag` and `text` alone."""

    markup: str


Child = HtmlNode | str | None


def text(words: object) -> HtmlNode:
    """Somebody's words: escaped, on one line, without invisible characters, not too long."""
    said = clean(words)
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]}… ({len(said)} characters)"
    return HtmlNode(html.escape(said, quote=True))


def tag(name: str, *children: Child | Iterable[Child], **attributes: object) -> HtmlNode:
    """An element. `class_` is `class`, `data_x` is `data-x`; None and False leave one out."""
    assert _NAME.match(name), name
    said = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        assert _NAME.match(attribute), attribute
        said.append(f" {attribute}" if value is True else f' {attribute}="{text(value).markup}"')
    opening = f"<{name}{''.join(said)}>"
    if name in VOID:
        return HtmlNode(opening)
    return HtmlNode(f"{opening}{''.join(_inner(children))}</{name}>")


def join(*nodes: Child | Iterable[Child]) -> HtmlNode:
    """One after the other."""
    return HtmlNode("".join(_inner(nodes)))


def _inner(children: Iterable[Child | Iterable[Child]]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, HtmlNode):
            yield child.markup
        elif isinstance(child, str):
            yield text(child).markup
        else:
            yield from _inner(child)


# What the sections are made of: a step, a sentence, a value, a table.


def section(key: str, title: str, inside: Sequence[Child]) -> HtmlNode:
    """A part of the page with its heading."""
    return tag(
        "section",
        tag("h2", title, id=f"{key}-title"),
        inside,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def details(summary: str, inside: Sequence[Child], *, open_: bool = False) -> HtmlNode:
    """What is shown when it is asked for."""
    return tag("details", tag("summary", summary), inside, open=open_)


def step_button(x: int, step: int, data: ChartData) -> HtmlNode:
    """A step; where there are charts, a button that takes them there."""
    said = f"step {step}"
    if not data.series:
        return tag("span", said, class_="step")
    return tag("button", said, type="button", class_="jump", data_x=x)


def inline_code(words: str) -> list[Child]:
    """A sentence; what stands between backticks is code."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # one of them is alone
        return [words]
    return [tag("code", part) if at % 2 else part for at, part in enumerate(parts)]


def format_value(value: Any, key: str = "") -> str:
    """A value for a reader, whatever it is."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, (int, float)):
        if key.endswith("bytes") and abs(value) < 1e300:
            return say_bytes(value)
        if isinstance(value, int):
            return str(value) if abs(value) < 10**15 else f"about 10^{math.log10(abs(value)):.0f}"
        return say(value, 6)
    if isinstance(value, Mapping):
        return ", ".join(
            f"{_words(name)}: {format_value(item)}" for name, item in [*value.items()][:20]
        )
    if isinstance(value, (list, tuple)):
        more = f" and {len(value) - 20} more" if len(value) > 20 else ""
        return ", ".join(format_value(item) for item in value[:20]) + more
    return str(encode_numbers(value))


def _words(key: object) -> str:
    return str(key).replace("_", " ")


def facts_table(rows: Sequence[tuple[str, Any]]) -> HtmlNode:
    """Names and values."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", _words(key)), tag("dd", format_value(value, str(key))))
            for key, value in rows
        ],
        class_="facts",
    )


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> HtmlNode:
    """Rows under a head; `numbers` are the columns that hold them."""

    def cells(kind: str, row: Sequence[str]) -> Iterator[HtmlNode]:
        for at, cell in enumerate(row):
            scope = "col" if kind == "th" else None
            yield tag(
                kind, inline_code(cell), class_="number" if at in numbers else None, scope=scope
            )

    # It scrolls by itself where it is too wide, and so has to be reachable with the keyboard.
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", cells("th", head))),
            tag("tbody", [tag("tr", cells("td", row)) for row in rows]),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )
