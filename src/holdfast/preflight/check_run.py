"""A few steps of somebody's training under full watch, and the report about them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.config import Settings
from holdfast.errors import TrainingHalted
from holdfast.live import ranks
from holdfast.live.launch import EnoughSteps, Launch
from holdfast.live.notices import logger
from holdfast.live.rhythm import FULL
from holdfast.live.snapshots import Snapshots
from holdfast.policy import Policy
from holdfast.preflight.hub import Hub
from holdfast.preflight.observer import Observer
from holdfast.preflight.observers import all_observers
from holdfast.report import Report

OBSERVE = Policy(hold_spikes=False, back_offs=0, roll_backs=0, replays=3, replay_gap=20)
"""A check looks on: only an update that is no number is held back, so that it can be explained."""


_ABOUT_OUR_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


@dataclass(slots=True)
class Checked:
    """What came of it."""

    report: Report
    steps: int
    """Steps of the busiest optimizer."""
    backwards: int
    error: BaseException | None = None
    """What the script itself raised; None where it ended well or was stopped by us."""
    stopped: bool = False
    """Whether it was stopped because enough had been seen."""
    notes: list[str] = field(default_factory=list)
    speaks: bool = True
    """Of several ranks that saw the same run, the first tells about it."""


def watch(
    work: Callable[[], Any],
    *,
    settings: Settings | None = None,
    max_steps: int | None = 3,
    max_seconds: float | None = None,
    max_norm: float | None = None,
    run_dir: str | Path | None = None,
    observers: Sequence[type[Observer]] | None = None,
    command: str = "check",
) -> Checked:
    """Run the work until enough steps were made, and judge what was seen.

    Whatever the work raises is kept in the result, except KeyboardInterrupt.
    """
    launch = Launch(
        settings=settings or Settings(),
        policy=OBSERVE,
        run_dir=run_dir,
        max_norm=max_norm,
        rhythm=FULL,
        snapshots=Snapshots(every=0, on_disk=0, on_signal=False),
        max_steps=max_steps,
        max_seconds=max_seconds,
    )
    error: BaseException | None = None
    with ExitStack() as stack:
        stack.enter_context(_eager())
        stack.enter_context(_quiet())
        stack.enter_context(launch)
        hub = stack.enter_context(
            Hub(launch, all_observers() if observers is None else list(observers))
        )
        try:
            work()
        except (EnoughSteps, TrainingHalted):
            pass
        except SystemExit as left:
            error = left if left.code not in (None, 0) else None
        except Exception as raised:  # the script's, whatever it is
            if not launch.enough:  # else it came of our stopping it
                error = raised
                hub.crashed(raised)
        hub.finished()
    launch.close()
    recorder = launch.recorder
    assert recorder is not None
    notes = [f"an observer failed and was left out: {said}" for said in hub.failed]
    if launch.unwatched:
        notes.append("the training could not be guarded: only what observers saw was judged")
    return Checked(
        report=Report.from_engine(recorder.engine, command=command, notes=notes),
        steps=max(launch.steps.values(), default=0),
        backwards=launch.backwards,
        error=error,
        stopped=launch.enough,
        notes=notes,
        speaks=ranks.own_number() == 0,
    )


@contextmanager
def _eager() -> Iterator[None]:
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
def _quiet() -> Iterator[None]:
    """Findings are told in the report, not in between."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
