"""Runs a whole training script under a guard, and says why no step was reached where none was."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.config import Settings
from headway.errors import TrainingHalted
from headway.guard.script.launcher import ScriptLauncher, children_seconds
from headway.policy import Action, Policy
from headway.report import Report
from headway.torch_adapters import live_objects

# A script that never made a step: what it did instead.

MIN_CHILD_SECONDS = 0.5
"""Seconds that processes the script has started must have worked to be blamed."""


@dataclass(frozen=True, slots=True)
class NoStepReason:
    """Why no optimizer step was seen, and what to do about it."""

    why: str
    advice: str

    def __str__(self) -> str:
        return f"no optimizer step was reached: {self.why}. {self.advice}"


def explain_no_step(
    launch: ScriptLauncher, error: BaseException | None, command: str = "check"
) -> NoStepReason:
    """The first reason that fits, for whoever typed `headway command`."""
    if error is not None:
        return NoStepReason(
            f"the script ended with {type(error).__name__} before its first step",
            "Its own message is shown as well",
        )
    if launch.enough:
        return NoStepReason(
            "the time given by --max-seconds was over first",
            "Give it more, or let the script prepare less",
        )
    if (
        multiprocessing.active_children()
        or children_seconds() - launch.children_before > MIN_CHILD_SECONDS
    ):
        return NoStepReason(
            "the training ran in processes the script started itself, which cannot be watched",
            f"Start them by torchrun: `torchrun --nproc-per-node N -m headway {command} SCRIPT`",
        )
    if launch.backwards:
        return NoStepReason(
            f"backward() ran {_count_in_words(launch.backwards)}, but no optimizer.step() followed",
            "Call optimizer.step() after the backward passes; weights updated by hand are not seen",
        )
    if live_objects.find_optimizers():
        return NoStepReason(
            "an optimizer was made, but backward() was never called",
            "Look whether the loop over the data is entered, and whether the data is empty",
        )
    return NoStepReason(
        "it ended without making a torch optimizer",
        f"Give the arguments that make it train after `--`: headway {command} SCRIPT -- --train",
    )


def _count_in_words(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# A whole training of somebody's script, guarded.


@dataclass(slots=True)
class GuardedRunResult:
    """What came of it."""

    report: Report
    steps: int
    actions: Sequence[Action] = field(default=())
    error: BaseException | None = None
    """What ended the script before its time: its own exception, or the guard's halt."""
    interrupted: bool = False
    unreached: NoStepReason | None = None


def run_guarded(
    work: Callable[[], Any],
    *,
    settings: Settings,
    run_dir: Path | None = None,
    max_norm: float | None = None,
) -> GuardedRunResult:
    """Run the work to its end under a guard; whatever it raises is kept in the result."""
    launch = ScriptLauncher(
        settings=settings,
        policy=Policy.from_mapping(settings.policy),
        run_dir=run_dir,
        max_norm=max_norm,
    )
    error: BaseException | None = None
    interrupted = False
    with launch:
        try:
            work()
        except KeyboardInterrupt:
            interrupted = True
        except SystemExit as left:
            error = left if left.code not in (None, 0) else None
        except (Exception, TrainingHalted) as raised:  # the script's, or our own halt
            error = raised
    launch.close()
    recorder = launch.recorder
    assert recorder is not None
    steps = max(launch.steps.values(), default=0)
    return GuardedRunResult(
        report=Report.from_engine(recorder.engine, command="run"),
        steps=steps,
        actions=tuple(recorder.actions),
        error=error,
        interrupted=interrupted,
        unreached=None if steps else explain_no_step(launch, error, "run"),
    )
