"""Finds named numbers in a line of text, and caches the layout of lines that repeat."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from headway.logs.step_counters import ABSENT, LARGEST, LARGEST_EPOCH

# Numbers with a name in a line: `loss: 2.31`, `loss=2.31`, `loss 2.31`, `'loss': '2.31'`.

# The text between two numbers has the name of the second one and the unit of the first one. It is
# the same in every line of a log, so it is parsed once and cached; a line costs one split and a few
# look-ups. No pattern here can backtrack over more than one number.

_NUMBER = re.compile(
    r"((?<![\w.@])(?<!\w-)(?<![A-Za-z_]/)[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d.])|\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}"
    # After `:` or `=` it is a value, whatever follows: `loss=nan grad_norm=1.2` …
    r"|(?:(?<=[:=])|(?<=[:=]\s)|(?<=[:=][-+])|(?<=[:=]\s[-+])|(?<=\s\s)|(?<=[lL]oss\s)|(?<=norm\s))"
    r"(?:[nN][aA][nN]|[iI][nN][fF](?:inity|INITY)?)(?!\w|\s*[:=])"
    # … and elsewhere it may be a word: `number of nan iterations: 0`.
    r"|(?:[nN][aA][nN]|[iI][nN][fF](?:inity|INITY)?)(?!\w|\s*[:=]|\s?/|\s(?:iter|step|grad|count|loss)))"
    r"(?:(?<=[\d.])[eE][-+]?\d{1,4})?)"
)
_UNIT = re.compile(r"\s?(%|[KMGT]i?B|[KMGTB]|ms|us|µs|s|it/s|s/it|ms/step|s/step|tok/s)(?![\w/])")
_RATE = re.compile(r"\s?((?:tok(?:en)?s?|samples?|imgs?|images?)/s(?:ec)?)(?![\w/])", re.IGNORECASE)
"""Units that name a number which has no other name: `| 52113 tok/s |`."""
_UNIT_IN_NAME = re.compile(r"\s*[\[(](%|[KMGT]i?B|ms|us|s|sec|seconds|MB/s|s/it)[\])]?$")
_WRAPPER = re.compile(
    r"(?:(?:np|numpy|torch|jnp)\.)?(?:float|int|bfloat|array|tensor|Array)\w{0,4}\($"
)
_BREAKS = re.compile(
    r"[|,;\t\n\[\]{}\"<>=:→•│┃]|(?<!\w)'|'(?!\w)|\s{2,}|\s[-–—]+\s|\)\s|^\)|(?<=\w{5})[.!]\s"
)
_CLOSES = re.compile(r"\)\s?[:=]\s*$")
_CELL = re.compile(r"\|\s{1,40}([A-Za-z_][\w/ .()-]{0,60}?)\s*\|\s*$")
_NOISE = " \t*_-.#>~/\\!?"
_FILLER = frozenset((
    "at", "in", "after", "with", "and", "the", "is", "was", "of", "for", "on", "to", "by",
    "=", "are", "has", "than", "from", "until", "then", "now", "a", "an",
))  # fmt: skip
_MAX_CACHED = 20_000
MAX_NAME = 80


class Pair(NamedTuple):
    """One number with its name."""

    name: str
    """As in the log, trimmed; "" for a bare `3/10`."""
    value: float
    of: float | None
    """The 10 of `3/10`."""
    strong: bool
    """Whether `:` or `=` is between name and number."""
    text: str
    """The number as it was printed."""
    at: int
    """Index among the numbers of the line."""


class _Gap(NamedTuple):
    unit: str
    name: str
    strong: bool
    slash: bool
    unit_in_name: str
    outer: str = ""
    """The name before a bracket that is open: `LR` of `LR (group 0) = 0.1`."""
    closes: bool = False
    """Whether the text closes such a bracket and a value follows."""


_cached: dict[str, _Gap] = {}


def split(line: str) -> list[str]:
    """Splits a line into text and numbers, alternating; the first and last part are text."""
    return _NUMBER.split(line)


def pairs(line: str, units: dict[str, str] | None = None) -> list[Pair]:
    """The named numbers of a line, in order, and bare fractions. Units found are added to
    `units`, by name."""
    parts = _NUMBER.split(line)
    found: list[Pair] = []
    last = len(parts) - 1
    fresh = False  # whether the number just before belongs to found[-1]
    waiting = ""
    for at in range(0, last, 2):
        between = parts[at]
        gap = _cached.get(between) or _learn(between)
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
        outer, waiting = waiting, gap.outer
        if outer and gap.closes:
            _close(found, outer, text, at // 2)
            fresh = True
            continue
        fresh = True
        if gap.name:
            found.append(Pair(gap.name, number(text), None, gap.strong, text, at // 2))
            if gap.unit_in_name and units is not None:
                units.setdefault(gap.name, gap.unit_in_name)
        elif between != "/" and at + 2 < last and parts[at + 2].strip() == "/":
            found.append(Pair("", number(text), None, False, text, at // 2))
        elif rate := _RATE.match(parts[at + 2]):
            found.append(Pair(rate[1], number(text), None, False, text, at // 2))
        else:
            fresh = False
    if units is not None and fresh and parts[-1]:
        gap = _cached.get(parts[-1]) or _learn(parts[-1])
        if gap.unit:
            units.setdefault(found[-1].name, gap.unit)
    return found


def _close(found: list[Pair], outer: str, text: str, at: int) -> None:
    """`LR (group 0) = 0.1` is one name; `Loss (epoch 1): 0.5` is a loss and an epoch."""
    inner = found[-1]
    if inner.name.lower() not in ("epoch", "step", "iter", "iteration", "batch"):
        outer = f"{outer} ({inner.name} {inner.text})"
        found.pop()
    found.append(Pair(outer, number(text), None, True, text, at))


def number(text: str) -> float:
    """Parses a printed number: `1,234.5`, `-nan`, `Infinity`, `6.0e-04`."""
    try:
        return float(text)
    except ValueError:
        return float(text.replace(",", ""))


def _learn(text: str) -> _Gap:
    if len(_cached) >= _MAX_CACHED:
        _cached.clear()
    gap = _cached[text] = _read(text)
    return gap


def _read(text: str) -> _Gap:
    """Parses the text between two numbers."""
    if text.strip() == "/":
        return _Gap("", "", False, True, "")
    unit = _UNIT.match(text)
    says_unit = unit[1] if unit else ""
    tail = text[-200:]
    cell = _CELL.search(tail)
    if cell:  # `|    value_loss      | 3.1 |`
        return _Gap(says_unit, _trim(cell[1]), True, False, "")
    if tail.endswith("("):
        tail = _WRAPPER.sub("", tail)
    head = tail.rstrip(" \t\"'[({")
    strong = head.endswith((":", "=", "->", "=>", "→", "...."))
    if not strong and head == tail:
        return _Gap(says_unit, "", False, False, "")  # `checkpoint-500`, `v2`
    closes = strong and bool(_CLOSES.match(text))
    head = head.rstrip(":=->→. \t\"'")
    outer = ""
    opened = head.rfind("(")
    if opened > 0 and head.find(")", opened) >= 0:
        opened = -1
    if opened > 0 and strong and "loss" in head[opened:].lower():
        head = head[opened + 1 :]  # `step 3/10 completed (loss: 2.3)`
    elif opened > 0 and not strong:
        outer, head = head[:opened], head[opened + 1 :]
        outer = _trim(outer[max((found.end() for found in _BREAKS.finditer(outer)), default=0) :])
    own = _UNIT_IN_NAME.search(head)
    if own:
        head = head[: own.start()]
    cuts = [found.end() for found in _BREAKS.finditer(head)]
    start = cuts[-1] if cuts else 0
    if not cuts and unit:
        start = unit.end()
    name = _trim(head[start:])
    if not strong and (name.count(" ") > 2 or _UNIT.fullmatch(name)):
        name = ""  # a sentence or a unit, not a name
    if name.endswith((".py", ".so", ".cpp", ".cu", "http", "https")) or len(name) > MAX_NAME:
        name = ""
    return _Gap(
        says_unit,
        name,
        strong,
        False,
        own[1] if own and name else "",
        outer if name else "",
        closes,
    )


def _trim(name: str) -> str:
    """A name without bullets, emoji and filler words around it."""
    first = next((i for i, char in enumerate(name) if char.isalnum() or char == "_"), len(name))
    name = name[first:].rstrip(_NOISE)
    words = name.split()
    while words and words[0].lower() in _FILLER:
        words.pop(0)
    while words and words[-1].lower() in _FILLER:
        words.pop()
    name = " ".join(words)
    return name if any(char.isalpha() for char in name) else ""


# Lines of a known shape. Most lines of a log have the same text around other numbers: which number
# is the step and which the loss is found once per text. A log of a million lines takes seconds.

_MAX_SHAPES = 2000
"""Shapes that are kept; a log has a handful."""
NOWHERE = -1


class LineShape(NamedTuple):
    """Which number of a line is which column or counter."""

    values: tuple[tuple[str, int, float], ...]
    """(name, index of the part, factor)."""
    epoch: int
    step: int
    total: int
    rank: str

    def read(self, parts: list[str]) -> tuple[dict[str, float], int, int, int]:
        """(values, epoch, count, total) of a line of this shape, split."""
        values = {name: number(parts[at]) * factor for name, at, factor in self.values}
        epoch = ABSENT if self.epoch < 0 else whole_count(number(parts[self.epoch]), LARGEST_EPOCH)
        count = ABSENT if self.step < 0 else whole_count(number(parts[self.step]), LARGEST)
        total = ABSENT if self.total < 0 else whole_count(number(parts[self.total]), LARGEST)
        return values, epoch, count, total


class LineShapes:
    """The shapes of one log."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], LineShape] = {}

    def of(self, parts: list[str]) -> LineShape | None:
        """The shape of a split line, if it was learned."""
        return self._known.get(tuple(parts[::2]))

    def learn(
        self,
        parts: list[str],
        rest: str,
        values: Iterable[tuple[str, int, float]],
        counters: tuple[int, int, int],
        rank: str = "",
    ) -> None:
        """Learns the shape of a line. Places are indices of the numbers in `rest`, its end."""
        before = len(parts) // 2 - len(split(rest)) // 2
        if before < 0 or len(self._known) >= _MAX_SHAPES or rank in parts[1 : 2 * before : 2]:
            return
        place = [2 * (at + before) + 1 if at >= 0 else NOWHERE for at in counters]
        moved = tuple((name, 2 * (at + before) + 1, factor) for name, at, factor in values)
        self._known[tuple(parts[::2])] = LineShape(moved, place[0], place[1], place[2], rank)


def whole_count(value: float, largest: int) -> int:
    """A number as a counter; ABSENT if it is negative, fractional or too large."""
    return int(value) if 0 <= value <= largest and value == int(value) else ABSENT
