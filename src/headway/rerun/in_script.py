"""Runs a captured incident again in the user's own loop, instead of training.

`headway replay` sets the request before it runs the script. The first loop over `guard(loader)`
then gets the captured batch; a loop over a plain DataLoader gets it after its first step. Weights,
buffers, scaler and random numbers are restored, no optimizer updates anything, and the outcome goes
to `done`, which leaves the script. If a framework has the loop, its adapter provides a function
that runs a step, and that is called instead.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headway.errors import HeadwayError
from headway.explain.failing_step import StepPass
from headway.explain.incident_file.incident_folder import IncidentFolder
from headway.explain.replay_outcome import ReplayOutcome, judge_replay, refuse_replay
from headway.rerun.by_call import (
    ReplayGuard,
    Run,
    add_reasons,
    bad_step_of,
    rerun_by_calling,
    restore_captured_rng,
    restore_captured_state,
)
from headway.torch_adapters.frames import current_frame

Done = Callable[[ReplayOutcome], NoReturn]
HOST_RERUN = "HEADWAY_HOST_RERUN"
"""Set in a process that runs a script on the host, to explain an error of the device."""
WARM_UP = 3
"""Steps that a script may take before its loop; a script that takes more is training."""


@dataclass(slots=True)
class _Request:
    capsule: IncidentFolder
    done: Done
    result: ReplayOutcome | None = None
    steps: int = 0
    """Optimizer steps outside of the replay."""


pending: _Request | None = None


def request_rerun(capsule: IncidentFolder, done: Done) -> None:
    """From now on, loops over `guard(loader)` replay this incident; `done` receives the outcome,
    and raises to leave the script."""
    global pending
    pending = _Request(capsule, done)


def withdraw_request() -> None:
    """Guards train as usual again."""
    global pending
    pending = None


def is_requested() -> bool:
    return pending is not None


def captured_step() -> int:
    """The number of the step that is requested."""
    assert pending is not None
    return pending.capsule.step


def rerun_result() -> ReplayOutcome | None:
    """The outcome, even if the loop was left before `done` could be called."""
    return None if pending is None else pending.result


def choose_run_dir(run_dir: str | Path | None) -> str | Path | None:
    """The run directory of a guard; while something is run again, a temporary one."""
    if run_dir is None or (pending is None and HOST_RERUN not in os.environ):
        return run_dir
    folder = tempfile.mkdtemp(prefix="headway-replay-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def rerun_in_loop(guard: ReplayGuard, loader: Iterable[Any]) -> Iterator[Any]:
    """Yields the captured batches once, then calls `done`; for a later loop, at once."""
    request = pending
    assert request is not None
    if request.result is None:
        yield from _run(request, guard, loader)
    if request.result is not None:
        request.done(request.result)


def rerun_step(
    guard: ReplayGuard, template: Any, prepare: Callable[[Sequence[Any]], Run]
) -> NoReturn:
    """The same where the step can be called: `prepare(batches)` returns how.

    `template` is a batch of the script's own loader.
    """
    request = pending
    assert request is not None
    if request.result is None:
        try:
            request.result = rerun_by_calling(guard, request.capsule, template, prepare)
        except HeadwayError as error:
            request.result = refuse_replay(str(error))
    request.done(request.result)


def refuse_rerun(why: str) -> NoReturn:
    """Leave a script in which the incident cannot be replayed."""
    request = pending
    assert request is not None
    request.done(request.result or refuse_replay(why))


def refuse_training_step() -> None:
    """An optimizer steps outside of the replay: the script must not train to its end."""
    if pending is None:
        return
    pending.steps += 1
    if pending.steps > WARM_UP:
        refuse_rerun(
            "the script trains without a loop over guard(loader) or a DataLoader, which receives "
            "the captured batch, and was stopped after a few steps. Use guard(loader), or --call"
        )


def _run(request: _Request, guard: ReplayGuard, loader: Iterable[Any]) -> Iterator[Any]:
    capsule = request.capsule
    try:
        batches = capsule.batches(_template(capsule, loader))
        notes = restore_captured_state(capsule, guard.restore_captured)
    except HeadwayError as error:
        request.result = refuse_replay(str(error))
        return
    restore_captured_rng(capsule)
    incident = bad_step_of(capsule, batches)
    # The first pass runs in the loop itself: before that, its variables are not bound.
    first = StepPass("again", batches)
    try:
        yield from guard.redeliver_captured(incident, first)
    finally:
        request.result = judge_replay(capsule, first.outcome, notes)
    if request.result.reproduces:
        yield from guard.explain_captured_step(incident, current_frame(1))
        request.result = add_reasons(request.result, guard, capsule)


def _template(capsule: IncidentFolder, loader: Iterable[Any]) -> Any:
    """A batch of the loader, if only that shows the classes of the captured one."""
    return next(iter(loader), None) if capsule.needs_template else None
