"""Runs a whole training script under a guard, and explains why it reached no optimizer step."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.config import Settings
from headway.errors import TrainingHalted
from headway.guard.endings.crash_stack import write_crash_stack
from headway.guard.endings.failure import find_exit_status
from headway.guard.script.launcher import ScriptLauncher
from headway.guard.script.step_limits import children_seconds
from headway.policy import Action, Policy
from headway.report import Report
from headway.torch_adapters import live_objects
from headway.torch_adapters.device_failure.lost_device import is_device_error, mark_device_lost
from headway.torch_adapters.process_groups import rank_group
from headway.torch_adapters.process_state.flight_recorder import request_recording

MIN_CHILD_SECONDS = 0.5
"""Processor time of child processes above which they are assumed to train."""


@dataclass(frozen=True, slots=True)
class NoStepReason:
    """Why no optimizer step was reached, and what to do about it."""

    why: str
    advice: str

    def __str__(self) -> str:
        return f"no optimizer step was reached: {self.why}. {self.advice}"


def explain_no_step(
    launch: ScriptLauncher, error: BaseException | None, command: str = "check"
) -> NoStepReason:
    """The first reason that fits, for a user of `headway command`."""
    if isinstance(error, KeyboardInterrupt):
        return NoStepReason(
            "the script was interrupted before its first step",
            "Run it again; --max-steps limits how long it runs"
            if command == "check"
            else "Run it again",
        )
    if error is not None:
        return NoStepReason(
            f"the script ended with {type(error).__name__} before its first step",
            "Its own message is shown too",
        )
    if launch.limits.enough:
        return NoStepReason(
            "--max-seconds was over first",
            "Raise --max-seconds, or shorten the preparation of the script",
        )
    if (
        multiprocessing.active_children()
        or children_seconds() - launch.children_before > MIN_CHILD_SECONDS
    ):
        return NoStepReason(
            "the script trains in processes that it starts itself, which headway cannot watch",
            f"Start them with torchrun: `torchrun --nproc-per-node N -m headway {command} SCRIPT`",
        )
    if launch.backwards:
        return NoStepReason(
            f"backward() ran {_count_in_words(launch.backwards)}, but no optimizer.step() followed",
            "Call optimizer.step() after backward(); manual weight updates are not seen",
        )
    if live_objects.find_optimizers():
        return NoStepReason(
            "an optimizer was created, but backward() was never called",
            "Check that the training loop is entered and that the data is not empty",
        )
    return NoStepReason(
        "it ended without creating a torch optimizer",
        f"Pass the arguments that make it train after `--`: headway {command} SCRIPT -- --train",
    )


def _count_in_words(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@dataclass(slots=True)
class GuardedRunResult:
    """The result of a guarded script."""

    report: Report
    steps: int
    actions: Sequence[Action] = field(default=())
    error: BaseException | None = None
    """What ended the script early: its own exception, or the guard's halt."""
    status: int = 0
    """The exit status that the script would have had without headway."""
    unreached: NoStepReason | None = None


def run_guarded(
    work: Callable[[], Any],
    *,
    settings: Settings,
    run_dir: Path | str | None = None,
    max_norm: float | None = None,
) -> GuardedRunResult:
    """Run the work under a guard; the result contains whatever it raises."""
    request_recording()
    launch = ScriptLauncher(
        settings=settings,
        policy=Policy.from_mapping(settings.policy),
        run_dir=run_dir,
        max_norm=max_norm,
    )
    error: BaseException | None = None
    ended: BaseException | None = None
    with (
        write_crash_stack(None if isinstance(run_dir, str) else run_dir, rank_group.own_rank()),
        launch,
    ):
        try:
            work()
        except KeyboardInterrupt as raised:
            ended = raised
            launch.interrupted()
        except SystemExit as left:
            ended = error = left if left.code not in (None, 0) else None
        except (Exception, TrainingHalted) as raised:  # the script's, or our own halt
            ended = error = raised
            if is_device_error(raised):  # now, while its frames hold what must not be destroyed
                mark_device_lost()
    launch.close(ended)
    recorder = launch.recorder
    assert recorder is not None
    steps = max(launch.steps.values(), default=0)
    return GuardedRunResult(
        report=Report.from_engine(recorder.engine, command="run"),
        steps=steps,
        actions=tuple(recorder.actions),
        error=error,
        status=0 if ended is None else find_exit_status(ended),
        unreached=None if steps else explain_no_step(launch, ended, "run"),
    )
