"""What somebody may have meant by a word that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.6


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The most alike of the words that exist; None if none is. Letters in their place count: of
    HD101 and HD311, the first is nearer to HD1O1."""

    def likeness(other: str) -> tuple[float, int]:
        ratio = difflib.SequenceMatcher(None, other, word).ratio()
        return ratio, sum(a == b for a, b in zip(other, word, strict=False))

    best = max(known, key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= CUTOFF else None
