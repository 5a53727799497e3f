"""The interface of the tools in the comparison."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Alarm:
    """A report of a tool about a run, at its own level of warning or above."""

    rule: str
    message: str
    lines: tuple[int, ...] = ()
    """Lines of the user's script, if the tool names any."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "message": self.message[:300], "lines": list(self.lines)}


class CannotRun(Exception):
    """This tool cannot be inserted into this script."""


class Tool:
    """A tool that observes a running script. All methods are optional."""

    name = "tool"
    package = ""
    reach = ""
    """What it can see by design."""
    environment = "main"
    means: ClassVar[dict[str, frozenset[str]]] = {}
    """What each of its rules says, in headway's codes: which faults it names by their cause."""
    at_least = 0
    """Number of steps, for a tool that needs more history than the fault needs to appear."""
    needs: tuple[str, ...] = ()
    """Words that a script must contain: the framework that the tool belongs to."""
    sample = 0
    """Maximum number of scripts, for a tool that only records."""

    def preload(self) -> None:
        """Import, once, what every run needs."""

    def begin(self, text: str) -> None:
        """Before the script, whose text is given."""

    def attach(self, model: Any, optimizer: Any) -> None:
        """Just before the first step, as a user would write it above the loop."""

    def lost(self, loss: float) -> None:
        """A backward pass began from this loss."""

    def stepped(self, optimizer: Any) -> None:
        """Called after an optimizer's step, before the gradients are cleared."""

    def raised(self, error: BaseException, script: str) -> list[Alarm] | None:
        """The alarm in an exception, or None if the exception is not a verdict of the tool."""
        return None

    def alarms(self) -> list[Alarm]:
        """All alarms, after the script has ended."""
        return []


def codes(*numbers: int) -> frozenset[str]:
    return frozenset(f"HD{number}" for number in numbers)
