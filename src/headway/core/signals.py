"""What a logged number means.

Two logs may both hold a column called `loss`, one value per step in the first, a mean over
ten steps with NaN filtered out in the second. A rule that is right for one is wrong for the
other, so every source describes its signals and every check says what it can work with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Fold = Literal["last", "mean", "sum", "max", "min"]
NonFinite = Literal["kept", "filtered"]
Scope = Literal["rank", "global"]
Cadence = Literal["steps", "rows"]
"""`steps`: one record per optimizer step, as it happens. `rows`: the rows of a finished log; they
are few, each may stand for many steps, and what follows a row is known when it is judged."""


@dataclass(frozen=True, slots=True)
class Signal:
    """How one named number was made.

    A name is either a plain scalar (`loss`), a loss component (`loss/box`), the same scalar of a
    further optimizer (`grad_norm#1`), or a column over an axis of the header (`param/grad_norm`).
    """

    span: int = 1
    """How many optimizer steps one value covers."""
    fold: Fold = "last"
    """How the values of the span were folded into one."""
    nonfinite: NonFinite = "kept"
    """Whether NaN and infinities survive, or the source replaced them."""
    scope: Scope = "rank"
    """Whether the value is one rank's own or already reduced over all of them."""
    digits: int | None = None
    """Significant digits kept by the source; None when nothing was rounded away."""
    every: int = 1
    """The value is present on every n-th step only."""

    def __post_init__(self) -> None:
        if self.span < 1 or self.every < 1:
            raise ValueError(f"span and every count steps from 1: got {self.span}, {self.every}")

    @property
    def steps(self) -> int:
        """How many steps one value stands for: those it covers, or those until the next one."""
        return max(self.span, self.every)

    @property
    def per_label(self) -> int:
        """Steps from one number of a record to the next: where a value covers more steps than lie
        between two values, the records are numbered by something longer, by epochs."""
        return max(self.span // self.every, 1)

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the default, so that a header stays readable."""
        plain = Signal()
        return {
            name: getattr(self, name)
            for name in self.__slots__
            if getattr(self, name) != getattr(plain, name)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signal:
        """Rebuild a description, ignoring keys and values of a later version."""
        kept: dict[str, Any] = {}
        for name in ("span", "every", "digits"):
            if type(data.get(name)) is int and data[name] >= 1:
                kept[name] = data[name]
        for name, allowed in (("fold", Fold), ("nonfinite", NonFinite), ("scope", Scope)):
            if data.get(name) in get_args(allowed):
                kept[name] = data[name]
        return cls(**kept)


def family(name: str) -> str:
    """The signal's name without its optimizer: `grad_norm#1` belongs to `grad_norm`."""
    return name.partition("#")[0]


def axis_of(name: str) -> str | None:
    """The header axis a column runs along (`param` for `param/grad_norm`)."""
    axis, slash, _ = name.partition("/")
    return axis if slash and axis in AXES else None


AXES = ("param", "buffer", "moment", "group", "rank", "act")
"""The axes a column may run along; any other prefix (`loss/box`) is a scalar's own name."""
