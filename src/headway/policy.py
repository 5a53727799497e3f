"""Decides what to do about a bad step. Pure functions; other modules execute the decision.

The ladder: skip the update (bounded) → back off the learning rate → roll back to a verified state →
halt. `Policy.decide` is a function of the ladder so far and the current step, without side effects.
A guard that cannot take a rung (for example, without snapshots) omits it from `rungs`, and the
ladder continues with the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from headway.config import reject_wrong_types
from headway.core.facts import say_list
from headway.errors import SettingsError, UsageError


class Rung(str, Enum):
    """The possible actions for a step, mildest first."""

    PROCEED = "proceed"
    SKIP = "skip"
    BACK_OFF = "back-off"
    ROLL_BACK = "roll-back"
    HALT = "halt"


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The result of the brake and the scan for one step."""

    step: int
    nonfinite: bool = False
    """The loss or a gradient is not finite."""
    spike: bool = False
    """The gradient norm is out of bounds."""
    poisoned: tuple[str, ...] = ()
    """Weights or moments that are themselves non-finite: skipping would loop forever."""

    @property
    def bad(self) -> bool:
        return self.nonfinite or self.spike or bool(self.poisoned)


@dataclass(frozen=True)
class Action:
    """What to do about a step, and why, in one sentence: one of the five classes below."""

    step: int
    reason: str = ""
    rung: ClassVar[Rung]

    def to_dict(self) -> dict[str, Any]:
        return {"action": self.rung.value, "step": self.step, "reason": self.reason}


class Proceed(Action):
    """The step is fine."""

    rung = Rung.PROCEED


class Skip(Action):
    """Skip the update and continue with the next batch."""

    rung = Rung.SKIP


@dataclass(frozen=True)
class BackOff(Action):
    """Lower the learning rate for a while."""

    rung = Rung.BACK_OFF
    factor: float = 0.5
    """Factor on the learning rate, on top of the user's own schedule."""

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "factor": self.factor}


class RollBack(Action):
    """Restore the last verified state, and continue with the next batches."""

    rung = Rung.ROLL_BACK


class Halt(Action):
    """Stop the run: continuing would only waste time."""

    rung = Rung.HALT


COOLDOWN = 200
CURES = ("suggest", "apply")
CAPTURES = ("off", "guilty-rows", "batch")
ON_OOM = ("stop", "split", "skip")
ON_BAD_SAMPLE = ("stop", "skip")

_CHOICES = (
    ("cure", CURES),
    ("capture", CAPTURES),
    ("on_oom", ON_OOM),
    ("on_bad_sample", ON_BAD_SAMPLE),
)
_ACTIONS = {kind.rung: kind for kind in (Proceed, Skip, BackOff, RollBack, Halt)}


@dataclass(frozen=True, slots=True)
class Policy:
    """How many bad steps the guard tolerates, and what it may do."""

    hold_spikes: bool = True
    """Skip an update whose gradient norm is out of bounds; False: record it only."""
    skips_in_a_row: int = 20
    """Consecutive skipped updates before the next rung."""
    skips_per_window: int = 100
    window: int = 1000
    """Steps within which `skips_per_window` skipped updates are tolerated before the next rung."""
    grace: int = 5
    """Consecutive skipped updates that are tolerated after a rung above skipping."""
    cooldown: int = COOLDOWN
    """Consecutive good steps after which an incident is over and the ladder restarts."""
    back_offs: int = 2
    """How often the learning rate may be lowered in one incident; 0: never."""
    back_off_factor: float = 0.5
    """Factor on the learning rate each time."""
    back_off_steps: int = 100
    """Steps for which the learning rate stays low after a back-off."""
    rewarm_steps: int = 100
    """Steps after that within which it returns to the user's own schedule."""
    roll_backs: int = 3
    """How often the run may be rolled back within a window; 0: never."""
    halt: bool = True
    """Whether the last rung may stop the run; False: keep skipping."""
    avoid_bad_batches: bool = False
    """Skip a batch whose update was skipped before; only with one rank."""
    replay: bool = True
    """Run a bad step again to name the op, the line and the sample, and to test remedies on it."""
    replays: int = 5
    """Maximum number of bad steps of a run that are run again."""
    replay_gap: int = 200
    """Steps after a re-run before the next one."""
    cure: str = "suggest"
    """`suggest`: report what fixed the failing step; `apply`: keep the fix active if it is
    cheap."""
    on_oom: str = "stop"
    """When a batch does not fit into memory: `stop` the run, `split` the batch into micro-batches
    with the same gradient, or `skip` the step. A batch that cannot be split is skipped."""
    on_bad_sample: str = "stop"
    """When loading a sample raises: `stop` the run, or `skip` the sample and use the rest of its
    batch."""
    capture: str = "batch"
    """Data that an incident stores on disk: the `batch`, only the `guilty-rows`, or nothing
    (`off`)."""
    hang_timeout: float = 0.0
    """Seconds without progress after which a run that hangs is ended with exit status 124, so that
    a launcher can start it again; 0: report the hang and keep waiting."""

    def __post_init__(self) -> None:
        for name in ("skips_in_a_row", "skips_per_window", "window", "grace", "cooldown"):
            if getattr(self, name) < 1:
                raise SettingsError(
                    f"Policy({name}=…) must be at least 1: got {getattr(self, name)}"
                )
        for name in ("back_offs", "back_off_steps", "rewarm_steps", "roll_backs"):
            if getattr(self, name) < 0:
                raise SettingsError(
                    f"Policy({name}=…) must be at least 0: got {getattr(self, name)}"
                )
        if self.replays < 0 or self.replay_gap < 0:
            raise SettingsError("Policy(replays=…, replay_gap=…) must be at least 0")
        if not self.hang_timeout >= 0:
            raise SettingsError(
                f"Policy(hang_timeout=…) must be at least 0: got {self.hang_timeout}"
            )
        for name, words in _CHOICES:
            if getattr(self, name) not in words:
                raise SettingsError(
                    f"Policy({name}=…) must be one of {', '.join(words)}: got "
                    f"{getattr(self, name)!r}"
                )
        if not 0.0 < self.back_off_factor < 1.0:
            raise SettingsError(
                f"Policy(back_off_factor=…) must be between 0 and 1: got {self.back_off_factor}"
            )

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Policy:
        """A policy from the `[policy]` table of the settings."""
        reject_wrong_types(data, cls, origin="policy in the settings")
        return cls(**data)

    def decide(
        self,
        ladder: Ladder,
        verdict: StepVerdict,
        rungs: frozenset[Rung] = frozenset({Rung.SKIP, Rung.HALT}),
    ) -> Action:
        """The action for a step. Pure: the caller calls `ladder.record_action` afterwards."""
        only_spike = not (verdict.nonfinite or verdict.poisoned)
        if not verdict.bad or (only_spike and not self.hold_spikes):
            return Proceed(verdict.step)
        if verdict.poisoned:
            verb = "are" if len(verdict.poisoned) > 1 else "is"
            reason = f"{say_list(verdict.poisoned)} {verb} non-finite: skipping cannot repair it"
            return self._first((Rung.ROLL_BACK, Rung.HALT), ladder, rungs, verdict, reason)
        what = "non-finite loss or gradient" if verdict.nonfinite else "gradient spike"
        patience = self.grace if ladder.escalated else self.skips_in_a_row
        if ladder.in_a_row + 1 > patience:
            reason = f"{what}, {ladder.in_a_row + 1} in a row (limit {patience})"
        elif ladder.within(verdict.step, self.window) + 1 > self.skips_per_window:
            reason = (
                f"{what}, more than {self.skips_per_window} skipped updates within "
                f"{self.window} steps"
            )
        else:
            return Skip(verdict.step, what)
        wanted = (Rung.BACK_OFF, Rung.ROLL_BACK, Rung.HALT)
        return self._first(wanted, ladder, rungs, verdict, reason)

    def _first(
        self,
        wanted: tuple[Rung, ...],
        ladder: Ladder,
        rungs: frozenset[Rung],
        verdict: StepVerdict,
        reason: str,
    ) -> Action:
        for rung in wanted:
            if rung not in rungs or not self._affordable(rung, ladder, verdict.step):
                continue
            if rung is Rung.BACK_OFF:
                return BackOff(verdict.step, reason, factor=self.back_off_factor)
            return _ACTIONS[rung](verdict.step, reason)
        return Skip(verdict.step, reason)

    def _affordable(self, rung: Rung, ladder: Ladder, step: int) -> bool:
        if rung is Rung.BACK_OFF:
            # After a rollback in this incident, the learning rate is not the cause.
            return ladder.back_offs < self.back_offs and not ladder.rolled_back
        if rung is Rung.ROLL_BACK:
            return sum(1 for at in ladder.roll_backs if at > step - self.window) < self.roll_backs
        return self.halt


@dataclass(slots=True)
class Ladder:
    """The actions so far; survives a resume."""

    in_a_row: int = 0
    """Consecutive skipped updates since the last rung above skipping."""
    held: deque[int] = field(default_factory=lambda: deque(maxlen=10_000))
    """Steps whose update was skipped since then, oldest first."""
    good: int = 0
    """Consecutive good steps."""
    back_offs: int = 0
    rolled_back: bool = False
    """Whether the run was rolled back in this incident."""
    roll_backs: deque[int] = field(default_factory=lambda: deque(maxlen=1_000))
    """Steps at which the run was rolled back, in this incident or before."""

    @property
    def escalated(self) -> bool:
        """Whether the policy has already done more than skip in this incident."""
        return self.back_offs > 0 or self.rolled_back

    @property
    def calm(self) -> bool:
        """Whether a good step would change nothing."""
        return not (self.in_a_row or self.escalated)

    def within(self, step: int, window: int) -> int:
        """Skipped updates in the `window` steps before this one."""
        return sum(1 for at in self.held if at > step - window)

    def record_action(self, action: Action, cooldown: int = COOLDOWN) -> None:
        """Record an action; after `cooldown` good steps the incident is over."""
        if action.rung is Rung.PROCEED:
            self.in_a_row = 0
            self.good += 1
            if self.good >= cooldown:
                self.back_offs, self.rolled_back = 0, False
            return
        self.good = 0
        if action.rung is Rung.BACK_OFF:
            self.back_offs += 1
        elif action.rung is Rung.ROLL_BACK:
            self.rolled_back = True
            self.roll_backs.append(action.step)
        else:
            self.in_a_row += 1
            self.held.append(action.step)
            return
        self.in_a_row = 0
        self.held.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "in_a_row": self.in_a_row,
            "held": list(self.held),
            "good": self.good,
            "back_offs": self.back_offs,
            "rolled_back": self.rolled_back,
            "roll_backs": list(self.roll_backs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.in_a_row = int(state["in_a_row"])
        self.good = int(state.get("good", 0))
        self.back_offs = int(state.get("back_offs", 0))
        self.rolled_back = bool(state.get("rolled_back", False))
        for steps, name in ((self.held, "held"), (self.roll_backs, "roll_backs")):
            steps.clear()
            steps.extend(state.get(name, ()))


def require_policy(policy: Policy | None) -> Policy | None:
    """Return the policy. Raises UsageError for anything else, such as the name of a policy."""
    if policy is None or isinstance(policy, Policy):
        return policy
    raise UsageError(
        f"policy must be a headway.Policy, such as headway.Policy(replay=False), not {policy!r}"
    )
