"""HTML from Python, with no way to forget the escaping.

Text becomes markup in one place only, `Node`, and there it is cleaned and escaped. Names of
parameters, messages and lines of logs are other people's text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

from headway.sinks.plain import clean

VOID = ("br", "col", "meta")
LONGEST = 1200
"""Characters of one piece of text; a page is for reading."""
_NAME = re.compile(r"^[a-z][a-z0-9-]*$")


@dataclass(frozen=True, slots=True)
class Node:
    """Finished markup. Made by `tag` and `text` alone."""

    markup: str


Child = Node | str | None


def text(words: object) -> Node:
    """Somebody's words: escaped, on one line, without invisible characters, not too long."""
    said = clean(words)
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]}… ({len(said)} characters)"
    return Node(html.escape(said, quote=True))


def tag(name: str, *children: Child | Iterable[Child], **attributes: object) -> Node:
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
        return Node(opening)
    return Node(f"{opening}{''.join(_inner(children))}</{name}>")


def join(*nodes: Child | Iterable[Child]) -> Node:
    """One after the other."""
    return Node("".join(_inner(nodes)))


def _inner(children: Iterable[Child | Iterable[Child]]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Node):
            yield child.markup
        elif isinstance(child, str):
            yield text(child).markup
        else:
            yield from _inner(child)
