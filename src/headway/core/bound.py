"""A limit as data: the same rule judges a step on the device, on the host and in a log.

The brake must act before the optimizer changes a weight, but a check sees values only afterwards.
So a check declares its limit as a `Bound`. The guard computes the limit from it before the step and
compares on the device; the check later evaluates the same bound with the same history.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from headway.core.state import register_state_class
from headway.core.window import Window

LARGEST = 3.4028234663852886e38
"""The largest finite float32: with no history yet, only a non-finite value is out of bounds."""
SMALLEST = 2.0**-126
"""The smallest normal float32: a device may treat smaller values as 0, so no limit is lower."""
SURELY = 1 - 1e-6
"""Factor below a limit that is larger than the rounding error of float32."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits how far `signal` may rise above its own recent level, relative to its spread."""

    signal: str
    sigmas: float = 8.0
    """Robust standard deviations of the logarithm above the median."""
    min_ratio: float = 10.0
    """Smallest factor of a rise that is out of bounds, however small the spread is."""
    window: int = 128
    grace: int = 20
    """Values that are needed before a finite value can be out of bounds."""
    patience: int = 8
    """Number of consecutive values out of bounds that count as a new level, not as a spike."""
    recent: int = 16
    """Number of last values whose median is the level if it is above that of the window."""


def as_float32(value: float) -> float:
    """The value as a device compares it."""
    if value >= LARGEST:
        return LARGEST
    return float(struct.unpack("f", struct.pack("f", value))[0])


@register_state_class
class History:
    """The history of a signal for a bound. Feed it in order; ask `limit` before each step."""

    __slots__ = ("_limit", "bound", "outside", "window")

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.window = Window(bound.window)
        self.outside: list[float] = []
        """The current run of out-of-bounds values, at most `patience` of them."""
        self._limit: float | None = LARGEST

    def limit(self) -> float:
        """The largest value in bounds now (a float32; `LARGEST` during the grace period)."""
        if self._limit is None:
            self._limit = self._compute_limit()
        return self._limit

    def out_of_bounds(self, value: float) -> bool:
        """Whether the value breaks the bound now. NaN and +Inf always do; a fall never does."""
        # The spread costs a sort; a value surely within min_ratio of the median never needs it.
        if self._limit is None:
            never = self.window.median * self.bound.min_ratio * SURELY
            if value <= min(never, LARGEST):
                return False
        return not value <= self.limit()

    def admit(self, value: float, *, outside: bool) -> None:
        """Add a value. A value out of bounds is not added, unless it is the new level."""
        if not outside:
            self.outside.clear()
            self._learn(value)
        elif math.isfinite(value):
            self.outside.append(value)
            if len(self.outside) >= self.bound.patience:
                self.window.clear()
                self._limit = LARGEST
                for seen in self.outside:
                    self._learn(seen)
                self.outside.clear()

    def _learn(self, value: float) -> None:
        if value > 0 and self.window.push(value):
            self._limit = None if len(self.window) >= self.bound.grace else LARGEST

    def _compute_limit(self) -> float:
        reach = max(self.bound.sigmas * self.window.sigma(log=True), math.log(self.bound.min_ratio))
        level = max(self.window.median, self.window.median_of_last(self.bound.recent))
        # exp of a very wide spread overflows; then nothing finite is out of bounds.
        exponent = math.log(level) + reach
        return max(as_float32(math.exp(exponent)), SMALLEST) if exponent < 88.7 else LARGEST

    def to_state(self) -> Any:
        slots = self.bound.__slots__
        return [[getattr(self.bound, slot) for slot in slots], self.window, self.outside]

    @classmethod
    def from_state(cls, state: Any) -> History:
        arguments, window, outside = state
        history = cls(Bound(*arguments))
        history.window = window
        history.outside = outside
        history._limit = None if len(window) >= history.bound.grace else LARGEST
        return history
