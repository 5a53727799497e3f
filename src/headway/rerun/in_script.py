"""Runs a captured incident again in the user's own loop, instead of training.

`headway replay` sets the demand before it runs the script. The first loop over `guard(loader)`
then gets the captured batch: weights, buffers, scaler and random numbers are put in place, no
optimizer moves anything, and what comes of it goes to `done`, which leaves the script. Where a
framework has the loop, its adapter says how a step is run, and that is called instead.
"""

from __future__ import annotations

import atexit
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
WARM_UP = 3
"""Steps that a script may make before its loop; whoever makes more is training."""


@dataclass(slots=True)
class _Request:
    capsule: IncidentFolder
    done: Done
    result: ReplayOutcome | None = None
    steps: int = 0
    """Made by optimizers of guards outside of the rehearsal."""


pending: _Request | None = None


def request_rerun(capsule: IncidentFolder, done: Done) -> None:
    """From now on, loops over `guard(loader)` rehearse this incident; `done` is told, and leaves
    the script by raising."""
    global pending
    pending = _Request(capsule, done)


def withdraw_request() -> None:
    """Guards train again."""
    global pending
    pending = None


def is_requested() -> bool:
    return pending is not None


def rerun_result() -> ReplayOutcome | None:
    """What came of it, also where the loop was left before `done` could be told."""
    return None if pending is None else pending.result


def choose_run_dir(run_dir: str | Path | None) -> str | Path | None:
    """Where a guard writes: a rehearsal is no part of the run, and leaves nothing in it."""
    if pending is None or run_dir is None:
        return run_dir
    folder = tempfile.mkdtemp(prefix="headway-replay-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def rerun_in_loop(guard: ReplayGuard, loader: Iterable[Any]) -> Iterator[Any]:
    """The captured batches, once; then `done`. A loop that comes again is told the same."""
    asked = pending
    assert asked is not None
    if asked.result is None:
        yield from _run(asked, guard, loader)
    if asked.result is not None:
        asked.done(asked.result)


def rerun_step(
    guard: ReplayGuard, template: Any, prepare: Callable[[Sequence[Any]], Run]
) -> NoReturn:
    """The same where the step can be called: `prepare` is told of the batches and says how.

    `template` is a batch of the present loader.
    """
    asked = pending
    assert asked is not None
    if asked.result is None:
        try:
            asked.result = rerun_by_calling(guard, asked.capsule, template, prepare)
        except HeadwayError as error:
            asked.result = refuse_replay(str(error))
    asked.done(asked.result)


def refuse_rerun(why: str) -> NoReturn:
    """Leave a script that cannot be rehearsed."""
    asked = pending
    assert asked is not None
    asked.done(asked.result or refuse_replay(why))


def refuse_training_step() -> None:
    """An optimizer steps, and no rehearsal is under way: the script must not train to its end."""
    if pending is None:
        return
    pending.steps += 1
    if pending.steps > WARM_UP:
        refuse_rerun(
            "the script trains without a loop over guard(loader), where the captured batch is "
            "handed over: it was left after a few steps. Use guard(loader), or --call"
        )


def _run(asked: _Request, guard: ReplayGuard, loader: Iterable[Any]) -> Iterator[Any]:
    capsule = asked.capsule
    try:
        batches = capsule.batches(_template(capsule, loader))
        notes = restore_captured_state(capsule, guard.put_in_place)
    except HeadwayError as error:
        asked.result = refuse_replay(str(error))
        return
    restore_captured_rng(capsule)
    incident = bad_step_of(capsule, batches)
    # The first time through the loop itself: before that, it has not bound its variables.
    first = StepPass("again", batches)
    try:
        yield from guard.give_again(incident, first)
    finally:
        asked.result = judge_replay(capsule, first.outcome, notes)
    if asked.result.reproduces:
        yield from guard.look_into_again(incident, current_frame(1))
        asked.result = add_reasons(asked.result, guard, capsule)


def _template(capsule: IncidentFolder, loader: Iterable[Any]) -> Any:
    """A batch of the loader, where the captured one is of classes that only it can tell."""
    return next(iter(loader), None) if capsule.needs_template else None
