"""Noticing, without reading a single number, whether gradients were cleared and whether a backward
reached them.

A few parameters of an optimizer serve as tokens. The identity and the version counter of a token's
gradient change when a backward adds to it, when `zero_grad` zeroes it and when it is set to None.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from torch import Tensor

from headway.live.shards import gradient_of, local_part

Stamp = tuple[tuple[int, int] | None, ...]


MOST_TOKENS = 12
"""Enough for a few parts that are trained in turn."""


class GradientTokens:
    """Watches the gradients of the first, the middle and the last parameter of the last steps."""

    def __init__(self, parameters: Sequence[Tensor] = ()) -> None:
        # Which of them get gradients, the first step will tell; until then all are watched.
        self._tokens = list(parameters)
        self._last: Stamp = self._stamp()
        self._before: Stamp = ()
        self.cleared = True
        """Whether the gradients were cleared since the last step."""
        self.filled = False
        """Whether a backward has added to them since the last step."""

    def choose(self, parameters: Sequence[Tensor]) -> None:
        """Take tokens from the parameters that had a gradient; some of the earlier ones stay."""
        count = len(parameters)
        chosen = [parameters[at] for at in sorted({0, count // 2, count - 1})]
        if any(new is not old for new, old in zip_longest(chosen, self._tokens[: len(chosen)])):
            known = set(map(id, chosen))
            chosen += [token for token in self._tokens if id(token) not in known]
            self._tokens = chosen[:MOST_TOKENS]

    def backward_begins(self) -> bool:
        """True when the gradients were cleared since we last looked: earlier losses are gone."""
        self._before = self._stamp()
        fresh = self._before != self._last or all(stamp is None for stamp in self._before)
        self.cleared = self.cleared or fresh
        return fresh

    def backward_ended(self) -> bool:
        """True when the backward added to these gradients."""
        self._last = self._stamp()
        reached = not self._tokens or self._last != self._before
        self.filled = self.filled or reached
        return reached

    def look(self) -> None:
        """The gradients were changed, but not cleared."""
        self._last = self._stamp()

    def stepped(self) -> None:
        """A step was taken; from here on the gradients are old."""
        self._last = self._stamp()
        self.cleared = self.filled = False

    def _stamp(self) -> Stamp:
        stamps = []
        for token in self._tokens:
            gradient = gradient_of(token)
            stamps.append(
                None if gradient is None else (id(gradient), local_part(gradient)._version)
            )
        return tuple(stamps)
