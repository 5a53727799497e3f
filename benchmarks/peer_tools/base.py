"""What every tool of the comparison looks like to the runner."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Alarm:
    """Something a tool said of a run, at its own level of warning or above."""

    rule: str
    message: str
    lines: tuple[int, ...] = ()
    """Of the user's script, where the tool names any."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "message": self.message[:300], "lines": list(self.lines)}


class CannotRun(Exception):
    """This tool has no way into this script."""


class Tool:
    """A tool that watches a running script. Every method may be left as it is."""

    name = "tool"
    package = ""
    reach = ""
    """What it can see by design."""
    environment = "main"
    means: ClassVar[dict[str, frozenset[str]]] = {}
    """What each of its rules says, in headway's codes: which faults it names by their cause."""
    at_least = 0
    """Steps it is given, where it needs a history longer than the fault needs to show."""
    needs: tuple[str, ...] = ()
    """Words that a script must hold: the framework the tool belongs to."""
    sample = 0
    """Run on so many scripts only, where a tool records and never judges."""

    def preload(self) -> None:
        """Import, once, what every run needs."""

    def begin(self, text: str) -> None:
        """Before the script, whose text is given."""

    def attach(self, model: Any, optimizer: Any) -> None:
        """Just before the first step, as a user would write it above the loop."""

    def lost(self, loss: float) -> None:
        """A backward pass began from this loss."""

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step; gradients are still there."""

    def raised(self, error: BaseException, script: str) -> list[Alarm] | None:
        """What an exception says, or None where it is no verdict of the tool."""
        return None

    def alarms(self) -> list[Alarm]:
        """All that was said, after the script."""
        return []


def codes(*numbers: int) -> frozenset[str]:
    return frozenset(f"HD{number}" for number in numbers)
