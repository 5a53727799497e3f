"""Where what is kept comes from, as an event tells it, in plain data a check can keep.

A growing memory says that something is kept; the events `retained` and `growth` say what and where.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, TypeAlias

from holdfast.core.findings import Where
from holdfast.core.records import EventRecord

Origin: TypeAlias = dict[str, Any]
"""`file`, `line`, `function`, `op`, `holder`, … as far as known."""

_KINDS: dict[str, type | tuple[type, ...]] = {
    "of": str,
    "file": str,
    "line": int,
    "function": str,
    "op": str,
    "holder": str,
    "bound": int,
    "carried": bool,
    "bytes": (int, float),
    "steps": int,
    "processes": int,
}


def origin_of(event: EventRecord) -> Origin:
    """What the event says, without what makes no sense: a log may hold anything."""
    return {
        name: event.data[name]
        for name, kind in _KINDS.items()
        if isinstance(event.data.get(name), kind)
    }


def where_made(origin: Origin, rank: int = 0) -> Where:
    """As a finding names it."""
    return Where(
        file=origin.get("file"),
        line=origin.get("line"),
        function=origin.get("function"),
        op=origin.get("op"),
        rank=rank or None,
    )


def said_line(origin: Origin) -> str:
    """`train.py:42 in main`; empty where the line is not known."""
    if "file" not in origin or "line" not in origin:
        return ""
    function = origin.get("function")
    inside = f" in {function}" if function and function != "<module>" else ""
    return f"{PurePath(origin['file']).name}:{origin['line']}{inside}"
