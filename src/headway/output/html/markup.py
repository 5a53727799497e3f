"""Builds escaped HTML: elements, tables, buttons and folded parts."""

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

# Text becomes markup only in `text`, which cleans and escapes it: parameter names, messages and log
# lines are untrusted.

VOID = ("br", "col", "meta")
LONGEST = 1200
"""Maximum number of characters of one text."""
_BASE64 = re.compile(r"^[A-Za-z0-9+/]+={0,2}$")
_NAME = re.compile(r"^[a-z][a-z0-9-]*$")


@dataclass(frozen=True, slots=True)
class HtmlNode:
    """Escaped markup. Only `tag`, `text` and `join` create it."""

    markup: str


Child = HtmlNode | str | None


def text(words: object) -> HtmlNode:
    """Untrusted text: cleaned, shortened and escaped."""
    cleaned = clean(words)
    if len(cleaned) > LONGEST:
        cleaned = f"{cleaned[:LONGEST]}… ({len(cleaned)} characters)"
    return HtmlNode(html.escape(cleaned, quote=True))


def tag(name: str, *children: Child | Iterable[Child], **attributes: object) -> HtmlNode:
    """An element. `class_` is `class`, `data_x` is `data-x`; None and False omit one."""
    assert _NAME.match(name), name
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        assert _NAME.match(attribute), attribute
        written.append(f" {attribute}" if value is True else f' {attribute}="{text(value).markup}"')
    opening = f"<{name}{''.join(written)}>"
    if name in VOID:
        return HtmlNode(opening)
    return HtmlNode(f"{opening}{''.join(_inner(children))}</{name}>")


def picture(png: str, alt: str) -> HtmlNode:
    """An image in the page; `png` is base64 that was checked to be a PNG file."""
    assert _BASE64.match(png)
    described = text(alt).markup
    return HtmlNode(f'<img class="pixels" alt="{described}" src="data:image/png;base64,{png}">')


def join(*nodes: Child | Iterable[Child]) -> HtmlNode:
    """Concatenate nodes."""
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


def section(key: str, title: str, inside: Sequence[Child]) -> HtmlNode:
    """A section with a heading."""
    return tag(
        "section",
        tag("h2", title, id=f"{key}-title"),
        inside,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def details(summary: str, inside: Sequence[Child], *, open_: bool = False) -> HtmlNode:
    """A folded part."""
    return tag("details", tag("summary", summary), inside, open=open_)


def step_button(x: int, step: int, data: ChartData) -> HtmlNode:
    """A step; if there are charts, a button that scrolls them there."""
    label = f"step {step}"
    if not data.series:
        return tag("span", label, class_="step")
    return tag("button", label, type="button", class_="jump", data_x=x)


def inline_code(words: str) -> list[Child]:
    """A sentence; text between backticks becomes code."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # unbalanced
        return [words]
    return [tag("code", part) if at % 2 else part for at, part in enumerate(parts)]


def format_value(value: Any, key: str = "") -> str:
    """Any value as text."""
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
    """A list of names and values."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", _words(key)), tag("dd", format_value(value, str(key))))
            for key, value in rows
        ],
        class_="facts",
    )


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int] = (),
    *,
    marked: int | None = None,
) -> HtmlNode:
    """A table; `numbers` are the columns with numbers, `marked` a row that stands out."""

    def cells(kind: str, row: Sequence[str]) -> Iterator[HtmlNode]:
        for at, cell in enumerate(row):
            scope = "col" if kind == "th" else None
            yield tag(
                kind, inline_code(cell), class_="number" if at in numbers else None, scope=scope
            )

    shown = [
        tag("tr", cells("td", row), class_="marked" if at == marked else None)
        for at, row in enumerate(rows)
    ]
    # A wide table scrolls, so it must be reachable with the keyboard.
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", cells("th", head))),
            tag("tbody", shown),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )
