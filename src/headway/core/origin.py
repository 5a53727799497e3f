"""Where what is kept comes from, as an event tells it, in plain data a check can keep.

A growing memory says that something is kept; the events `retained` and `growth` say what and where.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, TypeAlias

from headway.core.findings import Where
from headway.core.records import EventRecord

Origin: TypeAlias = dict[str, Any]
"""`file`, `line`, `function`, `op`, `holder`, … as far as known."""

_KINDS: dict[str, type | tuple[type, ...]] = {
    "of": str,
    "what": str,
    "file": str,
    "line": int,
    "function": str,
    "op": str,
    "holder": str,
    "bound": int,
    "carried": bool,
    "bytes": (int, float),
    "steps": int,
}


def origin_of(event: EventRecord) -> Origin:
    """What the event says, without what makes no sense: a log may hold anything."""
    return {
        name: event.data[name]
        for name, kind in _KINDS.items()
        if isinstance(event.data.get(name), kind)
    }


def tells_growth(event: EventRecord, signal: str) -> bool:
    """Whether the event says what makes this signal grow."""
    if event.kind == "retained":
        return event.data.get("bound") is None
    return event.kind == "growth" and event.data.get("of") == signal


def where_made(origin: Origin, rank: int = 0) -> Where:
    """As a finding names it."""
    return Where(
        file=origin.get("file"),
        line=origin.get("line"),
        function=origin.get("function"),
        op=origin.get("op"),
        rank=rank or None,
    )


def said_growth(origin: Origin) -> str:
    """What grows and which line made it; empty where that is not known."""
    line = said_line(origin)
    if not line:
        return ""
    if origin.get("what") == "workers":
        return f"it is the loader workers that grow, and the data set they read is at {line}"
    return f"what is kept was made at {line}"


def said_line(origin: Origin) -> str:
    """`train.py:42 in main`; empty where the line is not known."""
    if "file" not in origin or "line" not in origin:
        return ""
    function = origin.get("function")
    inside = f" in {function}" if function and function != "<module>" else ""
    return f"{PurePath(origin['file']).name}:{origin['line']}{inside}"
