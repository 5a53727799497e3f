"""The meaning of a logged number.

Two logs may both have a column `loss`: one value per step in the first, a mean over ten steps with
NaN filtered out in the second. A rule that is valid for one is wrong for the other, so every source
describes its signals and every check declares what it needs.
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
are few, each may stand for many steps, and the rows after it are known when it is judged."""


@dataclass(frozen=True, slots=True)
class Signal:
    """The meaning of a named number: how it was computed.

    A name is either a plain scalar (`loss`), a loss component (`loss/box`), the same scalar of a
    further optimizer (`grad_norm#1`), or a column over an axis of the header (`param/grad_norm`).
    """

    span: int = 1
    """Number of optimizer steps that one value covers."""
    fold: Fold = "last"
    """How the values of the span are reduced to one."""
    nonfinite: NonFinite = "kept"
    """Whether the source keeps or filters NaN and infinities."""
    scope: Scope = "rank"
    """Whether the value belongs to one rank or is reduced over all ranks."""
    digits: int | None = None
    """Significant digits in the source; None: not rounded."""
    every: int = 1
    """The value is present at every n-th step only."""

    def __post_init__(self) -> None:
        if self.span < 1 or self.every < 1:
            raise ValueError(f"span and every must be at least 1: got {self.span}, {self.every}")

    @property
    def steps(self) -> int:
        """Number of steps that one value represents: those it covers, or those until the next."""
        return max(self.span, self.every)

    @property
    def per_label(self) -> int:
        """Steps per unit of a record's number: more than 1 if a value covers more steps than the
        numbers of two values differ, as in a log that counts epochs."""
        return max(self.span // self.every, 1)

    def to_json(self) -> dict[str, Any]:
        """Only values that differ from the default, so that a header stays readable."""
        plain = Signal()
        return {
            name: getattr(self, name)
            for name in self.__slots__
            if getattr(self, name) != getattr(plain, name)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signal:
        """Read a description; keys and values of a later version are ignored."""
        kept: dict[str, Any] = {}
        for name in ("span", "every", "digits"):
            if type(data.get(name)) is int and data[name] >= 1:
                kept[name] = data[name]
        for name, allowed in (("fold", Fold), ("nonfinite", NonFinite), ("scope", Scope)):
            if data.get(name) in get_args(allowed):
                kept[name] = data[name]
        return cls(**kept)


def family(name: str) -> str:
    """The name of a signal without its optimizer: `grad_norm` for `grad_norm#1`."""
    return name.partition("#")[0]


def axis_of(name: str) -> str | None:
    """The header axis of a column (`param` for `param/grad_norm`)."""
    axis, slash, _ = name.partition("/")
    return axis if slash and axis in AXES else None


AXES = ("param", "buffer", "moment", "group", "rank", "act")
"""The axes of columns; any other prefix (`loss/box`) is part of a scalar's name."""


PERCENT_BYTES = 2.0**30
"""Bytes that stand for 1 % in a memory signal of a log that counts percent, because the limits of
the checks are in bytes. The header lists such signals under the fact `in_percent`."""


HOST_SIGNALS = (
    "process_cpu_cores",
    "host_cpu_cores",
    "host_memory_used_bytes",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "network_read_bytes_per_s",
    "network_write_bytes_per_s",
)
GPU_SIGNALS = (
    "gpu_busy_share",
    "gpu_memory_used_bytes",
    "gpu_power_w",
    "gpu_temperature_c",
    "gpu_clock_mhz",
)
SYSTEM_SIGNALS = frozenset((*HOST_SIGNALS, *GPU_SIGNALS))
"""How busy the machine is: read about once a second, and present in the step that follows."""
