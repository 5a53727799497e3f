"""Runs a few training steps under all observers and builds the report."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from headway.config import Settings
from headway.core.findings import Finding
from headway.core.records import Record, SetupRecord
from headway.errors import TrainingHalted
from headway.guard.endings.fatal_stack import write_crash_stack
from headway.guard.measure.sampling import FULL_SAMPLING
from headway.guard.recorder import Recorder
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.script.guarded_run import NoStepReason, explain_no_step
from headway.guard.script.launcher import ScriptLauncher
from headway.guard.script.step_limits import StepLimitReached, StepLimits
from headway.output.notices import logger
from headway.policy import Policy
from headway.preflight.event_bus import EventBus
from headway.preflight.observer import Observer
from headway.preflight.observers import all_observers
from headway.preflight.observers.model.device_use import MEMORY_TOPIC as MEMORY
from headway.preflight.observers.model.parameter_structure import INVENTORY_TOPIC as INVENTORY
from headway.preflight.trial.update_trials import OVERFIT
from headway.report import Report
from headway.torch_adapters.autocast_regions import regions_disabled
from headway.torch_adapters.compat import accelerator_type
from headway.torch_adapters.device_failure.lost_device import is_device_error, mark_device_lost
from headway.torch_adapters.frames import warnings_at_user_lines
from headway.torch_adapters.process_groups import rank_group

# Overrides the precision of the script (--amp-dtype).

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def override_precision(dtype: str | None) -> Iterator[None]:
    """`bf16` or `fp16`: run under autocast; `none`: disable autocast; None: no change."""
    if dtype is None:
        yield
    elif dtype == "none":
        with regions_disabled():
            yield
    else:
        kind = accelerator_type()
        if not torch.amp.is_autocast_available(kind):
            kind = "cpu"
        with torch.autocast(kind, dtype=DTYPES[dtype]):
            yield


# Runs a few steps under all observers and builds the report.

OBSERVE = Policy(hold_spikes=False, back_offs=0, roll_backs=0, replays=3, replay_gap=20)
"""A check only observes: it skips non-finite updates, to explain them."""


_ABOUT_OUR_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


@dataclass(slots=True)
class CheckResult:
    """The result of a check."""

    report: Report
    steps: int
    """Steps of the optimizer with the most steps."""
    passes: int
    """Backward passes that were checked because no torch optimizer steps; 0 otherwise."""
    tables: dict[str, Any]
    """`inventory` and `memory`, if available."""
    error: BaseException | None = None
    """The exception of the script; None if it ended normally or was stopped by the check."""
    limit: str = ""
    """What stopped it: `--max-steps`, or the reason of the guard; empty if nothing did."""
    stopped: bool = False
    """Whether the check stopped it: enough steps, or the guard halted the training."""
    interrupted: bool = False
    """Whether it was interrupted by Ctrl-C."""
    unreached: NoStepReason | None = None
    """Why no step was made, if none was."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes of the report: observers that failed, and why."""
        return self.report.notes


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How many steps to run, and changes to the run."""

    max_steps: int | None = 3
    max_seconds: float | None = None
    warm_seconds: float | None = None
    """Budget for the steps after the first one."""
    max_norm: float | None = None
    amp_dtype: str | None = None
    """`bf16` or `fp16`: run under autocast; `none`: disable the autocast of the script."""
    detect_anomaly: bool | None = None
    """On, off, or None for no change."""
    run_dir: str | Path | None = None
    supervised_in: Path | None = None
    """The folder from which the parent process reports if this process vanishes: the run directory,
    or a folder of its own if there is none."""
    overfit: bool = False
    """Whether to test that the model can overfit one batch."""
    trained: tuple[nn.Module, Optimizer] | None = None
    """The model and optimizer, if known."""


def run_check(
    work: Callable[[], Any],
    *,
    settings: Settings | None = None,
    how: CheckOptions | None = None,
    max_steps: int | None = 3,
    observers: Sequence[type[Observer]] | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    command: str = "check",
) -> CheckResult:
    """Run `work` until it has made enough steps, and run the checks.

    An exception of `work` is stored in the result.
    """
    how = how or CheckOptions(max_steps=max_steps)
    launch = ScriptLauncher(
        settings=settings or Settings(),
        policy=OBSERVE,
        run_dir=how.run_dir,
        max_norm=how.max_norm,
        sampling_plan=FULL_SAMPLING,
        snapshots=Snapshots(every=0, on_disk=0, on_signal=False),
        limits=StepLimits(how.max_steps, how.max_seconds, how.warm_seconds),
        trained=how.trained,
    )
    ended = _Ending()
    tables = _Tables()
    launch.on_recorder.append(
        lambda recorder: _add_listeners(recorder, tables, on_record, on_finding)
    )
    private = how.supervised_in if how.run_dir is None else None
    if private is not None:
        launch.on_recorder.append(lambda recorder: recorder.write_for_parent(private))
    with ExitStack() as stack:
        for around in (
            write_crash_stack(how.supervised_in, 0 if private else rank_group.own_rank()),
            _force_eager(),
            warnings_at_user_lines(),
            _silence_notices(),
            _set_anomaly_mode(how.detect_anomaly),
            launch,
            override_precision(how.amp_dtype),
        ):
            stack.enter_context(around)
        kinds = all_observers() if observers is None else list(observers)
        hub = stack.enter_context(EventBus(launch, kinds, overfit=how.overfit))
        ended.of(work, launch)
        if ended.error is not None and is_device_error(ended.error):
            mark_device_lost()  # observers would read tensors
        else:
            if ended.error is not None:
                hub.crashed(ended.error)
            launch.passes.finish()
            hub.finished()
    steps = max(launch.steps.values(), default=0) + max(launch.skipped.values(), default=0)
    error = ended.error or ended.interrupted
    unreached = None if steps else explain_no_step(launch, error)
    with _silence_notices():
        launch.close(error, unreached)
    recorder = launch.recorder
    assert recorder is not None
    notes = [f"an observer failed and was removed: {error}" for error in hub.failed]
    if launch.unwatched:
        notes.append(
            "the training could not be guarded: the checks use the data of the observers only"
        )
    passes = launch.passes.count if launch.by_hand else 0
    report = Report.from_engine(recorder.engine, command=command, notes=notes)
    return CheckResult(
        report=replace(
            report,
            looked_at=_count_steps(steps, passes),
            not_shown=_not_shown(steps, passes),
            too_little="" if steps or passes else "no optimizer step was taken",
        ),
        steps=steps,
        passes=passes,
        limit=launch.limits.name or ended.reason,
        tables=tables.found,
        error=ended.error,
        stopped=launch.limits.enough or ended.halted,
        interrupted=ended.interrupted is not None,
        unreached=unreached,
    )


FEW_STEPS = 300
"""Fewer steps cannot show what develops slowly."""


def _count_steps(steps: int, passes: int) -> str:
    if passes:
        return "1 backward pass" if passes == 1 else f"{passes} backward passes"
    return "1 step" if steps == 1 else f"{steps} steps"


def _not_shown(steps: int, passes: int) -> str:
    if max(steps, passes) >= FEW_STEPS:
        return ""
    return (
        f"{_count_steps(steps, passes).capitalize()} cannot show what develops over hundreds of "
        "steps: a stall, growing memory, a collapsed schedule, label noise."
    )


@dataclass(slots=True)
class _Ending:
    """How the work ended."""

    error: BaseException | None = None
    interrupted: KeyboardInterrupt | None = None
    halted: bool = False
    reason: str = ""
    """Why the guard halted it."""

    def of(self, work: Callable[[], Any], launch: ScriptLauncher) -> None:
        try:
            work()
        except (StepLimitReached, TrainingHalted) as stopped:
            # Frames of the script may keep loaders with workers alive.
            traceback.clear_frames(stopped.__traceback__)
            self.halted = isinstance(stopped, TrainingHalted)
            if self.halted:  # `training halted at step 19: 20 bad steps in a row. The weights …`
                self.reason = str(stopped).partition(": ")[2].partition(". ")[0]
        except KeyboardInterrupt as raised:
            self.interrupted = raised
            launch.interrupted()
        except SystemExit as left:
            self.error = left if left.code not in (None, 0) else None
        except BaseException as raised:  # of the script; some libraries use it
            if not launch.limits.enough:  # otherwise stopping the script caused it
                self.error = raised


@dataclass(slots=True)
class _Tables:
    """Facts that are shown as tables."""

    found: dict[str, Any] = field(default_factory=dict)

    def __call__(self, record: Record) -> None:
        if isinstance(record, SetupRecord) and record.topic in (INVENTORY, MEMORY, OVERFIT):
            self.found[record.topic] = record.facts


def _add_listeners(
    recorder: Recorder,
    tables: _Tables,
    on_record: Callable[[Record], None] | None,
    on_finding: Callable[[Finding], None] | None,
) -> None:
    recorder.listeners += [tables, on_record] if on_record is not None else [tables]
    if on_finding is not None:
        recorder.finding_listeners.append(on_finding)


@contextmanager
def _force_eager() -> Iterator[None]:
    """Disable torch.compile: compiled code cannot be observed."""
    warnings.filterwarnings("ignore", message=_ABOUT_OUR_HOOKS)
    filters: Any = warnings.filters
    entry = filters[0]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        with suppress(ValueError):  # the script replaced the filters
            filters.remove(entry)


@contextmanager
def _silence_notices() -> Iterator[None]:
    """Findings appear in the report only, not as notices during the run."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _set_anomaly_mode(wanted: bool | None) -> Any:
    return nullcontext() if wanted is None else torch.autograd.set_detect_anomaly(wanted)
