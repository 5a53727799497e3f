"""From a node of autograd to the forward op it belongs to.

Nodes are numbered in the order of the forward, each thread for itself. The first op that is seen
while a number is the latest is the op whose backward that node is.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from headway.replay.ambient import LEAF, last_number
from headway.replay.calls import Call


@dataclass(slots=True)
class _Numbered:
    numbers: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class ForwardCalls:
    """The calls that made a node, by its number."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._threads: dict[int, _Numbered] = {}

    def note(self, call: Call) -> None:
        """A call, before the next one in this thread."""
        number = last_number()
        known = self._threads.setdefault(threading.get_ident(), _Numbered())
        if number >= 0 and (not known.numbers or number > known.numbers[-1]):
            call.number = number
            known.numbers.append(number)
            known.calls.append(call)

    def of(self, node: Any, *, nested: bool) -> Call | None:
        """The forward op of a node. `nested`: its graph was made in this thread, by a forward that
        was recomputed there."""
        number = node._sequence_nr()
        known = self._threads.get(threading.get_ident()) if nested else None
        if known is None or not known.numbers:
            known = self._threads.get(self._main)
        if known is None or not 0 <= number < LEAF:
            return None
        # A node that no op was seen for belongs to the one before: writing through a view has two.
        at = bisect_right(known.numbers, number) - 1
        return known.calls[at] if at >= 0 else None
