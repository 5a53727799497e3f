"""Numbers with a name, in a line of text: `loss: 2.31`, `loss=2.31`, `loss 2.31`, `'loss': '2.31'`.

The text between two numbers says what the second one is called and what the first one was measured
in. It is the same in every line of a log, so what it says is worked out once and kept; a line then
costs one split and a few look-ups, whatever its shape. No pattern here can backtrack over more
than one number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBER = re.compile(
    r"((?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d.])|\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}"
    r"|(?:[nN][aA][nN]|[iI][nN][fF](?:inity|INITY)?)(?!\w|\s*[:=]|\s?/|\s(?:iter|step|grad|count|loss)))"
    r"(?:(?<=[\d.])[eE][-+]?\d{1,4})?)"
)
_UNIT = re.compile(r"\s?(%|[KMGT]i?B|[KMGTB]|ms|us|µs|s|it/s|s/it|ms/step|s/step|tok/s)(?![\w/])")
_UNIT_IN_NAME = re.compile(r"\s*[\[(](%|[KMGT]i?B|ms|us|s|sec|seconds|MB/s|s/it)[\])]?$")
_WRAPPER = re.compile(r"(?:(?:np|numpy|torch|jnp)\.)?(?:float|int|bfloat|array|tensor|Array)\w{0,4}\($")
_BREAKS = re.compile(r"[|,;\t\n\[\]{}\"'<>=:→•│┃]|\s{2,}|\s[-–—]+\s|\)\s|^\)")
_NOISE = " \t*_-.#>~/\\!?"
_FILLER = frozenset(
    "at in after with and the is was of for on to by = are has than from until then now a an".split()
)
_MOST_KEPT = 20_000
LONGEST_NAME = 80


class Pair(NamedTuple):
    """One number and what stands around it."""

    name: str
    """As the log has it, trimmed; empty for a bare `3/10`."""
    value: float
    of: float | None
    """The 10 of `3/10`."""
    strong: bool
    """Written with `:` or `=`, not merely beside it."""
    text: str
    """The number as it was printed."""


class _Gap(NamedTuple):
    unit: str
    name: str
    strong: bool
    slash: bool
    unit_in_name: str


_kept: dict[str, _Gap] = {}


def pairs(line: str, units: dict[str, str] | None = None) -> list[Pair]:
    """The named numbers of a line, in order, and bare fractions. `units` gets the unit of a name
    that has one."""
    parts = _NUMBER.split(line)
    found: list[Pair] = []
    last = len(parts) - 1
    fresh = False  # whether the number just before belongs to found[-1]
    for at in range(0, last, 2):
        between = parts[at]
        gap = _kept.get(between) or _learn(between)
        text = parts[at + 1]
        if fresh:
            if gap.slash:
                found[-1] = found[-1]._replace(of=number(text))
                fresh = False
                continue
            if between == ":":  # a clock: `eta: 0:10:00`
                found.pop()
                fresh = False
                continue
            if gap.unit and units is not None:
                units.setdefault(found[-1].name, gap.unit)
        fresh = True
        if gap.name:
            found.append(Pair(gap.name, number(text), None, gap.strong, text))
            if gap.unit_in_name and units is not None:
                units.setdefault(gap.name, gap.unit_in_name)
        elif between != "/" and at + 2 < last and parts[at + 2].strip() == "/":
            found.append(Pair("", number(text), None, False, text))
        else:
            fresh = False
    if units is not None and fresh and parts[-1]:
        gap = _kept.get(parts[-1]) or _learn(parts[-1])
        if gap.unit:
            units.setdefault(found[-1].name, gap.unit)
    return found


def number(text: str) -> float:
    """A number as loggers print it: `1,234.5`, `-nan`, `Infinity`, `6.0e-04`."""
    try:
        return float(text)
    except ValueError:
        return float(text.replace(",", ""))


def _learn(text: str) -> _Gap:
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    gap = _kept[text] = _read(text)
    return gap


def _read(text: str) -> _Gap:
    """What a stretch of text between two numbers tells."""
    if text.strip() == "/":
        return _Gap("", "", False, True, "")
    unit = _UNIT.match(text)
    says_unit = unit[1] if unit else ""
    tail = text[-200:]
    if tail.endswith("("):
        tail = _WRAPPER.sub("", tail)
    head = tail.rstrip(" \t\"'[({")
    strong = head.endswith((":", "=", "->", "=>", "→")) or head.endswith("....")
    if not strong and head == tail:
        return _Gap(says_unit, "", False, False, "")  # `checkpoint-500`, `v2`
    head = head.rstrip(":=->→. \t\"'")
    own = _UNIT_IN_NAME.search(head)
    if own:
        head = head[: own.start()]
    cuts = [found.end() for found in _BREAKS.finditer(head)]
    start = cuts[-1] if cuts else 0
    if not cuts and unit:
        start = unit.end()
    name = _trim(head[start:])
    if not strong and (name.count(" ") > 3 or _UNIT.fullmatch(name)):
        name = ""  # a sentence or a unit, not a name
    if name.endswith((".py", ".so", ".cpp", ".cu", "http", "https")) or len(name) > LONGEST_NAME:
        name = ""
    return _Gap(says_unit, name, strong, False, own[1] if own and name else "")


def _trim(name: str) -> str:
    """A name without bullets, emoji and the little words around it."""
    first = next((i for i, char in enumerate(name) if char.isalnum() or char == "_"), len(name))
    name = name[first:].rstrip(_NOISE)
    words = name.split()
    while words and words[0].lower() in _FILLER:
        words.pop(0)
    while words and words[-1].lower() in _FILLER:
        words.pop()
    name = " ".join(words)
    return name if any(char.isalpha() for char in name) else ""
