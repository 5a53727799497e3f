"""A whole training of somebody's script, guarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.config import Settings
from headway.errors import TrainingHalted
from headway.live.launch import Launch
from headway.policy import Action, Policy
from headway.preflight.unreached import Unreached, why_unreached
from headway.report import Report


@dataclass(slots=True)
class Ran:
    """What came of it."""

    report: Report
    steps: int
    actions: Sequence[Action] = field(default=())
    error: BaseException | None = None
    """What ended the script before its time: its own exception, or the guard's halt."""
    interrupted: bool = False
    unreached: Unreached | None = None


def run(
    work: Callable[[], Any],
    *,
    settings: Settings,
    run_dir: Path | None = None,
    max_norm: float | None = None,
) -> Ran:
    """Run the work to its end under a guard; whatever it raises is kept in the result."""
    launch = Launch(
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
    return Ran(
        report=Report.from_engine(recorder.engine, command="run"),
        steps=steps,
        actions=tuple(recorder.actions),
        error=error,
        interrupted=interrupted,
        unreached=None if steps else why_unreached(launch, error, "run"),
    )
