"""Runs a few training steps under all observers and builds the report."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from headway.config import Settings
from headway.core.records import Record, SetupRecord
from headway.errors import TrainingHalted
from headway.guard.measure.sampling import FULL_SAMPLING
from headway.guard.recorder import Recorder
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.script.guarded_run import NoStepReason, explain_no_step
from headway.guard.script.launcher import EnoughSteps, ScriptLauncher
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

# The precision somebody asked the check to run in, put over the script's own.

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def override_precision(dtype: str | None) -> Iterator[None]:
    """`bf16` or `fp16`: everything runs under autocast; `none`: nothing does; None: as it is."""
    if dtype is None:
        yield
    elif dtype == "none":
        with regions_disabled():
            yield
    else:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.autocast(kind, dtype=DTYPES[dtype]):
            yield


# A few steps of somebody's training under full watch, and the report about them.

OBSERVE = Policy(hold_spikes=False, back_offs=0, roll_backs=0, replays=3, replay_gap=20)
"""A check looks on: only an update that is no number is held back, so that it can be explained."""


_ABOUT_OUR_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


@dataclass(slots=True)
class CheckResult:
    """What came of it."""

    report: Report
    steps: int
    """Steps of the busiest optimizer."""
    tables: dict[str, Any]
    """`inventory` and `memory`, as far as they could be seen."""
    error: BaseException | None = None
    """What the script itself raised; None where it ended well or was stopped by us."""
    stopped: bool = False
    """Whether it was stopped because enough had been seen, or nothing could save it."""
    interrupted: bool = False
    """Whether somebody pressed Ctrl-C."""
    unreached: NoStepReason | None = None
    """Why no step was reached, where none was."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know: observers that were left out, and why."""
        return self.report.notes


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How much to watch, and what to change about the run, if asked."""

    max_steps: int | None = 3
    max_seconds: float | None = None
    max_norm: float | None = None
    amp_dtype: str | None = None
    """`bf16` or `fp16`: forwards run under autocast; `none`: the script's own autocast is off."""
    detect_anomaly: bool | None = None
    """On, off, or as the script wishes."""
    run_dir: str | Path | None = None
    overfit: bool = False
    """Whether to try to learn one batch by heart."""
    trained: tuple[nn.Module, Optimizer] | None = None
    """What trains, where it is known."""


def run_check(
    work: Callable[[], Any],
    *,
    settings: Settings | None = None,
    how: CheckOptions | None = None,
    max_steps: int | None = 3,
    observers: Sequence[type[Observer]] | None = None,
    on_record: Callable[[Record], None] | None = None,
    command: str = "check",
) -> CheckResult:
    """Run the work until enough steps were made, and judge what was seen.

    Whatever the work raises is kept in the result.
    """
    how = how or CheckOptions(max_steps=max_steps)
    launch = ScriptLauncher(
        settings=settings or Settings(),
        policy=OBSERVE,
        run_dir=how.run_dir,
        max_norm=how.max_norm,
        sampling_plan=FULL_SAMPLING,
        snapshots=Snapshots(every=0, on_disk=0, on_signal=False),
        max_steps=how.max_steps,
        max_seconds=how.max_seconds,
        trained=how.trained,
    )
    ended = _Ending()
    tables = _Tables()
    launch.on_recorder.append(lambda recorder: _add_listeners(recorder, tables, on_record))
    with ExitStack() as stack:
        for around in (
            _force_eager(),
            _silence_notices(),
            _set_anomaly_mode(how.detect_anomaly),
            launch,
            override_precision(how.amp_dtype),
        ):
            stack.enter_context(around)
        kinds = all_observers() if observers is None else list(observers)
        hub = stack.enter_context(EventBus(launch, kinds, overfit=how.overfit))
        ended.of(work, launch)
        if ended.error is not None:
            hub.crashed(ended.error)
        hub.finished()
    launch.close()
    recorder = launch.recorder
    assert recorder is not None
    notes = [f"an observer failed and was left out: {said}" for said in hub.failed]
    if launch.unwatched:
        notes.append("the training could not be guarded: only what observers saw was judged")
    steps = max(launch.steps.values(), default=0) + max(launch.skipped.values(), default=0)
    return CheckResult(
        report=Report.from_engine(recorder.engine, command=command, notes=notes),
        steps=steps,
        tables=tables.found,
        error=ended.error,
        stopped=launch.enough or ended.halted,
        interrupted=ended.interrupted,
        unreached=None if steps else explain_no_step(launch, ended.error),
    )


@dataclass(slots=True)
class _Ending:
    """How the work ended."""

    error: BaseException | None = None
    interrupted: bool = False
    halted: bool = False

    def of(self, work: Callable[[], Any], launch: ScriptLauncher) -> None:
        try:
            work()
        except (EnoughSteps, TrainingHalted) as stopped:
            # Frames of the script may hold loaders with workers: let them go.
            traceback.clear_frames(stopped.__traceback__)
            self.halted = isinstance(stopped, TrainingHalted)
        except KeyboardInterrupt:
            self.interrupted = True
        except SystemExit as left:
            self.error = left if left.code not in (None, 0) else None
        except Exception as raised:  # the script's, whatever it is
            if not launch.enough:  # else it came of our stopping it
                self.error = raised


@dataclass(slots=True)
class _Tables:
    """Facts that are shown as tables."""

    found: dict[str, Any] = field(default_factory=dict)

    def __call__(self, record: Record) -> None:
        if isinstance(record, SetupRecord) and record.topic in (INVENTORY, MEMORY, OVERFIT):
            self.found[record.topic] = record.facts


def _add_listeners(
    recorder: Recorder, tables: _Tables, on_record: Callable[[Record], None] | None
) -> None:
    recorder.listeners.append(tables)
    if on_record is not None:
        recorder.listeners.append(on_record)


@contextmanager
def _force_eager() -> Iterator[None]:
    """Compiled code runs as it is written: what happens inside a kernel cannot be watched."""
    warnings.filterwarnings("ignore", message=_ABOUT_OUR_HOOKS)
    filters: Any = warnings.filters
    entry = filters[0]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        with suppress(ValueError):  # the script has set filters of its own
            filters.remove(entry)


@contextmanager
def _silence_notices() -> Iterator[None]:
    """Findings are told in the report, not in between."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _set_anomaly_mode(wanted: bool | None) -> Any:
    return nullcontext() if wanted is None else torch.autograd.set_detect_anomaly(wanted)
