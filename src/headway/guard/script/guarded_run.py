"""Runs a whole training script under a guard, and explains why it reached no optimizer step."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from headway.config import Settings
from headway.core.records import Record
from headway.guard.endings.failure import find_exit_status
from headway.guard.endings.fatal_stack import write_crash_stack
from headway.guard.guard_inputs import attach_notifier, has_guard
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.script.launcher import ScriptLauncher
from headway.guard.script.step_limits import children_seconds
from headway.policy import Action, Policy
from headway.postmortem.run_summary import MIN_LOSSES
from headway.report import Report
from headway.torch_adapters.device_failure.lost_device import is_device_error, mark_device_lost
from headway.torch_adapters.process_groups import rank_group
from headway.torch_adapters.process_state.flight_recorder import request_recording

MIN_CHILD_SECONDS = 0.5
"""Processor time of child processes above which they are assumed to train."""


@dataclass(frozen=True, slots=True)
class NoStepReason:
    """The reason why no optimizer step was reached, and what to do about it."""

    why: str
    advice: str
    command: str = "check"
    partly: bool = False
    """Whether updates that are not finite are skipped all the same."""
    forgotten: bool = False
    """Whether the script ended by itself, with an optimizer and many backward passes."""

    def __str__(self) -> str:
        lead = "" if self.partly else "no optimizer step was reached: "
        return f"{lead}{self.why}. {self.advice}"

    def to_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"why": self.why, "advice": f"{self.advice}."}
        said = {"command": self.command, "partly": self.partly, "forgotten": self.forgotten}
        return {**facts, **said}


def explain_no_step(
    launch: ScriptLauncher, error: BaseException | None, command: str = "check"
) -> NoStepReason:
    """The first reason that fits, for a user of `headway command`."""
    return replace(_find_reason(launch, error, command), command=command)


def _find_reason(launch: ScriptLauncher, error: BaseException | None, command: str) -> NoStepReason:
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
    if launch.by_hand:
        return _explain_manual_update(launch, command)
    if launch.limits.enough and not launch.backwards:
        return NoStepReason(
            f"{launch.limits.name} was reached first",
            "Raise --max-seconds, or shorten the preparation of the script",
        )
    if (
        multiprocessing.active_children()
        or children_seconds() - launch.children_before > MIN_CHILD_SECONDS
    ):
        return NoStepReason(
            "the script trains in processes that it starts itself, which headway cannot watch",
            "Create `headway.Guard` in the function that they run, or start them with "
            f"`torchrun --nproc-per-node N -m headway {command} SCRIPT`",
        )
    if launch.backwards:
        return NoStepReason(
            f"backward() ran {_count_in_words(launch.backwards)}, but no optimizer.step() followed",
            "Call optimizer.step() after backward()",
            forgotten=bool(launch.optimizers_made)
            and launch.backwards >= MANY_BACKWARDS
            and not launch.limits.enough,
        )
    if launch.optimizers_made:
        return NoStepReason(
            "an optimizer was created, but backward() was never called",
            "Check that the training loop is entered and that the data is not empty",
        )
    return NoStepReason(
        "it ended without creating a torch optimizer",
        f"Pass the arguments that make it train after `--`: headway {command} SCRIPT -- --train",
    )


def explain_unguarded(
    launch: ScriptLauncher, error: BaseException | None, command: str
) -> NoStepReason | None:
    """Why no update of the script was guarded; None if at least one was."""
    if launch.guard is not None and any(launch.skipped.values()):
        return None  # its GradScaler has skipped them; they were measured
    if not any(launch.steps.values()):
        return explain_no_step(launch, error, command)
    if launch.guard is None:
        return NoStepReason(
            "the model or the optimizer is of a kind that cannot be guarded",
            "HEADWAY_STRICT=1 raises the exception that says why",
            command,
        )
    return None


MANY_BACKWARDS = 20
"""Backward passes after which a missing step is a fault and no gradient accumulation."""
OTHER_OPTIMIZERS = ("keras", "fastai")
"""Packages whose optimizers are not torch optimizers."""
FULL_GUARD = {
    "fastai": "A torch optimizer is guarded completely: "
    "Learner(..., opt_func=partial(OptimWrapper, opt=torch.optim.Adam))",
    "keras": "A torch optimizer over model.parameters() in your own loop is guarded completely",
}
"""What their users can do."""


def _explain_manual_update(launch: ScriptLauncher, command: str) -> NoStepReason:
    passes = _count_in_words(launch.passes.count)
    loaded = [name for name in OTHER_OPTIMIZERS if name in sys.modules]
    by = f"an optimizer of {loaded[0]}" if loaded else "hand"
    if launch.passes.updates:
        return NoStepReason(
            f"the weights are updated by {by}, which is not a torch.optim.Optimizer. An update "
            "with NaN or Inf is skipped; there is no re-run of a bad step, no snapshot and no "
            "roll-back",
            FULL_GUARD[loaded[0]] if loaded else "Use a torch optimizer",
            partly=True,
        )
    return NoStepReason(
        f"the weights are updated by {by}, not by a torch.optim.Optimizer "
        f"(backward() ran {passes})",
        f"{'Loss, inputs, graph' if command == 'check' else 'Loss'} and gradients of the backward "
        "passes were checked, updates were not",
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


NOT_SHOWN = (
    "A guarded run measures the training. Faults in the script itself, such as a softmax before "
    "cross_entropy, are found by `headway check`."
)


def _too_little(steps: int) -> str:
    """Why nothing can be said of a run without findings; empty if it was long enough."""
    if steps >= MIN_LOSSES:
        return ""
    return f"only {'1 step was' if steps == 1 else f'{steps} steps were'} taken, too few to judge"


def run_guarded(
    work: Callable[[], Any],
    *,
    settings: Settings,
    run_dir: Path | str | None = None,
    max_norm: float | None = None,
    on_record: Callable[[Record], None] | None = None,
    notify: Sequence[str] = (),
) -> GuardedRunResult:
    """Run the work under a guard; the result contains whatever it raises."""
    request_recording()
    launch = ScriptLauncher(
        settings=settings,
        policy=Policy.from_mapping(settings.policy),
        run_dir=run_dir,
        max_norm=max_norm,
    )
    if on_record is not None:
        launch.on_recorder.append(lambda recorder: recorder.listeners.append(on_record))
    if rank_group.own_rank() == 0:
        launch.on_recorder.append(
            lambda recorder: attach_notifier(notify, recorder, None, launch.notices)
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
        except BaseException as raised:  # the script's, or our own halt
            ended = error = raised
            if is_device_error(raised):  # now, while its frames hold what must not be destroyed
                mark_device_lost()
    launch.passes.finish()
    steps = max(launch.steps.values(), default=launch.passes.updates)
    unguarded = explain_unguarded(launch, ended, "run")
    launch.close(ended, unguarded)
    recorder = launch.recorder
    assert recorder is not None
    status = 0 if ended is None else find_exit_status(ended)
    number = recorder.ending.signal
    if isinstance(ended, Exception) and number is not None:  # it would have ended the script before
        error, status = None, 128 + number
    return GuardedRunResult(
        report=replace(
            Report.from_engine(recorder.engine, command="run"),
            looked_at="1 step" if steps == 1 else f"{steps} steps",
            not_shown=NOT_SHOWN,
            too_little=_too_little(steps),
        ),
        steps=steps,
        actions=tuple(recorder.actions),
        error=error,
        status=status,
        unreached=unguarded,
    )


class _ReplayLauncher(ScriptLauncher):
    """Guards a script only if it has no guard of its own."""

    def _create_guard(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], **options: Any
    ) -> None:
        if any(map(has_guard, optimizers)):
            self.unwatched = True
        else:
            super()._create_guard(models, optimizers, **options)


def replay_script(work: Callable[[], Any]) -> None:
    """Run a script until the captured incident was replayed in it. In a loop over a plain
    DataLoader, the captured batch comes after the first step."""
    plan = Snapshots(every=0, on_disk=0, on_signal=False)
    with _ReplayLauncher(settings=Settings(), policy=Policy(), snapshots=plan) as launch:
        try:
            work()
        finally:
            if launch.guard is not None:
                launch.guard.retire()
