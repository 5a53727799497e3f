"""A curve in one line of text, with a mark where it began to go wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
BAD, PLAIN_BAD = "×", "x"
MARK, PLAIN_MARK = "▲", "^"


def sparkline(
    steps: Sequence[int],
    values: Sequence[float],
    *,
    width: int,
    onset: int | None = None,
    plain: bool = False,
) -> tuple[str, str]:
    """(the curve, the line below it with the onset's mark; empty without one).

    A column stands for several points: their mean, or the cross of a value that is not finite. The
    scale is logarithmic where the values span more than a factor of a hundred.
    """
    bars, bad = (PLAIN_BARS, PLAIN_BAD) if plain else (BARS, BAD)
    count = min(len(values), len(steps))
    if not count or width < 2:
        return "", ""
    columns = min(width, count)
    edges = [count * at // columns for at in range(columns + 1)]
    groups = [values[start:end] for start, end in pairwise(edges)]
    heights = _heights([_level(group) for group in groups], len(bars))
    curve = "".join(bad if height is None else bars[height] for height in heights)
    if onset is None or onset > steps[count - 1] or onset < steps[0]:
        return curve, ""
    place = next(
        (at for at in range(columns) if any(s >= onset for s in steps[edges[at] : edges[at + 1]])),
        columns - 1,
    )
    return curve, " " * place + (PLAIN_MARK if plain else MARK)


def _level(group: Sequence[float]) -> float | None:
    """The height of a column; None where it holds a value that is not finite."""
    if any(not math.isfinite(value) for value in group):
        return None
    return sum(value / len(group) for value in group)


def _heights(levels: Sequence[float | None], steps: int) -> list[int | None]:
    known = [level for level in levels if level is not None]
    if not known:
        return [None] * len(levels)
    low, high = min(known), max(known)
    if low > 0 and high > 100 * low:
        return _heights([None if x is None else math.log(x) for x in levels], steps)
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [None if level is None else 0 for level in levels]
    return [
        None if level is None else min(int((level - low) / span * steps), steps - 1)
        for level in levels
    ]
