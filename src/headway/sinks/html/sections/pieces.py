"""What the sections are made of: a step, a sentence, a value, a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.charts.gather import ChartData
from headway.core.numbers import encode_numbers, say, say_bytes
from headway.sinks.html.markup import Child, Node, tag


def section(key: str, title: str, inside: Sequence[Child]) -> Node:
    """A part of the page with its heading."""
    return tag(
        "section",
        tag("h2", title, id=f"{key}-title"),
        inside,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def folded(summary: str, inside: Sequence[Child], *, open_: bool = False) -> Node:
    """What is shown when it is asked for."""
    return tag("details", tag("summary", summary), inside, open=open_)


def jump(x: int, step: int, data: ChartData) -> Node:
    """A step; where there are charts, a button that takes them there."""
    said = f"step {step}"
    if not data.series:
        return tag("span", said, class_="step")
    return tag("button", said, type="button", class_="jump", data_x=x)


def prose(words: str) -> list[Child]:
    """A sentence; what stands between backticks is code."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # one of them is alone
        return [words]
    return [tag("code", part) if at % 2 else part for at, part in enumerate(parts)]


def said(value: Any, key: str = "") -> str:
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
        return ", ".join(f"{_words(name)}: {said(item)}" for name, item in [*value.items()][:20])
    if isinstance(value, (list, tuple)):
        more = f" and {len(value) - 20} more" if len(value) > 20 else ""
        return ", ".join(said(item) for item in value[:20]) + more
    return str(encode_numbers(value))


def _words(key: object) -> str:
    return str(key).replace("_", " ")


def facts_table(rows: Sequence[tuple[str, Any]]) -> Node:
    """Names and values."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", _words(key)), tag("dd", said(value, str(key))))
            for key, value in rows
        ],
        class_="facts",
    )


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> Node:
    """Rows under a head; `numbers` are the columns that hold them."""

    def cells(kind: str, row: Sequence[str]) -> Iterator[Node]:
        for at, cell in enumerate(row):
            scope = "col" if kind == "th" else None
            yield tag(kind, prose(cell), class_="number" if at in numbers else None, scope=scope)

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
