"""From a bad step to an action: pure decisions, executed elsewhere.

The ladder: skip the update (bounded) → back off the learning rate → roll back to a verified state →
halt. `Policy.decide` is a function of the ladder so far and the step just judged; it touches
nothing. A guard that cannot take a rung (no snapshots, say) leaves it out of `rungs` and the ladder
goes past it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from holdfast.config import refuse_misfits
from holdfast.errors import SettingsError


class Rung(str, Enum):
    """What can be done about a step, mildest first."""

    PROCEED = "proceed"
    SKIP = "skip"
    BACK_OFF = "back-off"
    ROLL_BACK = "roll-back"
    HALT = "halt"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the brake and the scan found out about one step."""

    step: int
    nonfinite: bool = False
    """The loss or a gradient is not finite."""
    spike: bool = False
    """The gradient norm broke its bound."""
    poisoned: tuple[str, ...] = ()
    """Weights or moments that are themselves non-finite: skipping would loop for ever."""

    @property
    def bad(self) -> bool:
        return self.nonfinite or self.spike or bool(self.poisoned)


@dataclass(frozen=True)
class Action:
    """What shall be done about a step, and why, in one sentence: one of the five below."""

    step: int
    reason: str = ""
    rung: ClassVar[Rung]

    def to_dict(self) -> dict[str, Any]:
        return {"action": self.rung.value, "step": self.step, "reason": self.reason}


class Proceed(Action):
    """The step is fine."""

    rung = Rung.PROCEED


class Skip(Action):
    """Hold the update back and go on with the next batch."""

    rung = Rung.SKIP


class BackOff(Action):
    """Lower the learning rate for a while."""

    rung = Rung.BACK_OFF


class RollBack(Action):
    """Return to the last state that was verified good, and go on with the next batches."""

    rung = Rung.ROLL_BACK


class Halt(Action):
    """Stop the run: going on would only burn time."""

    rung = Rung.HALT


_ACTIONS = {kind.rung: kind for kind in (Proceed, Skip, BackOff, RollBack, Halt)}


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient the guard is."""

    hold_spikes: bool = True
    """Hold back an update whose gradient norm breaks its bound; False: record it only."""
    skips_in_a_row: int = 20
    """So many held updates in a row are borne before the next rung."""
    skips_per_window: int = 100
    window: int = 1000
    """So many held updates within so many steps are borne before the next rung."""
    halt: bool = True
    """Whether the last rung may stop the run; False: go on skipping."""
    avoid_bad_batches: bool = False
    """Leave a batch out when it comes again and its update was held back before; one rank only."""

    def __post_init__(self) -> None:
        for name in ("skips_in_a_row", "skips_per_window", "window"):
            if getattr(self, name) < 1:
                raise SettingsError(f"Policy({name}=…) counts from 1: got {getattr(self, name)}")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Policy:
        """A policy from the settings' `[policy]` table."""
        refuse_misfits(data, cls, origin="policy in the settings")
        return cls(**data)

    def decide(
        self,
        ladder: Ladder,
        verdict: Verdict,
        rungs: frozenset[Rung] = frozenset({Rung.SKIP, Rung.HALT}),
    ) -> Action:
        """The action for a step. Pure: the caller lets the ladder `climb` afterwards."""
        only_spike = not (verdict.nonfinite or verdict.poisoned)
        if not verdict.bad or (only_spike and not self.hold_spikes):
            return Proceed(verdict.step)
        if verdict.poisoned:
            reason = f"{_some(verdict.poisoned)} non-finite: skipping cannot mend it"
            return self._first((Rung.ROLL_BACK, Rung.HALT), rungs, verdict, reason)
        what = "non-finite loss or gradient" if verdict.nonfinite else "gradient spike"
        if ladder.in_a_row + 1 > self.skips_in_a_row:
            reason = f"{what}, {ladder.in_a_row + 1} in a row (limit {self.skips_in_a_row})"
        elif ladder.within(verdict.step, self.window) + 1 > self.skips_per_window:
            reason = (
                f"{what}, more than {self.skips_per_window} held updates within {self.window} steps"
            )
        else:
            return Skip(verdict.step, what)
        return self._first((Rung.BACK_OFF, Rung.ROLL_BACK, Rung.HALT), rungs, verdict, reason)

    def _first(
        self, wanted: tuple[Rung, ...], rungs: frozenset[Rung], verdict: Verdict, reason: str
    ) -> Action:
        for rung in wanted:
            if rung in rungs and (rung is not Rung.HALT or self.halt):
                return _ACTIONS[rung](verdict.step, reason)
        return Skip(verdict.step, reason)


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{shown}{more} {'are' if len(names) > 1 else 'is'}"


@dataclass(slots=True)
class Ladder:
    """What has been done so far; survives a resume."""

    in_a_row: int = 0
    held: deque[int] = field(default_factory=lambda: deque(maxlen=10_000))
    """Steps whose update was held back, oldest first."""

    def within(self, step: int, window: int) -> int:
        """Held updates in the `window` steps before this one."""
        return sum(1 for at in self.held if at > step - window)

    def climb(self, action: Action) -> None:
        """Remember an action that was taken."""
        if action.rung is Rung.PROCEED:
            self.in_a_row = 0
        else:
            self.in_a_row += 1
            self.held.append(action.step)

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self.in_a_row, "held": list(self.held)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.in_a_row = int(state["in_a_row"])
        self.held.clear()
        self.held.extend(state["held"])
