"""A captured incident in the user's own loop, instead of training.

`headway replay` sets the demand before it runs the script. The first loop over `guard(loader)`
then gets the captured batch: weights, buffers, scaler and random numbers are put in place, no
optimizer moves anything, and what comes of it goes to `done`, which leaves the script. Where a
framework has the loop, its adapter says how a step is run, and that is called instead.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headway.errors import HeadwayError, UsageError
from headway.live.batch_identity import Kept
from headway.live.incident import Incident
from headway.live.stage import in_a_line
from headway.replay.capsule import Capsule
from headway.replay.passes import Pass
from headway.replay.rehearsed import Rehearsed, explained, judged, refused
from headway.torch_tools import rng

if TYPE_CHECKING:
    from headway.live.guard import Guard

Done = Callable[[Rehearsed], NoReturn]
Run = Callable[[Any], Any]
"""Forward and backward over a batch."""
WARM_UP = 3
"""Steps that a script may make before its loop; whoever makes more is training."""


@dataclass(slots=True)
class _Demand:
    capsule: Capsule
    done: Done
    result: Rehearsed | None = None
    steps: int = 0
    """Made by optimizers of guards outside of the rehearsal."""


_pending: _Demand | None = None


def demand(capsule: Capsule, done: Done) -> None:
    """From now on, loops over `guard(loader)` rehearse this incident; `done` is told, and leaves
    the script by raising."""
    global _pending
    _pending = _Demand(capsule, done)


def withdraw() -> None:
    """Guards train again."""
    global _pending
    _pending = None


def demanded() -> bool:
    return _pending is not None


def result() -> Rehearsed | None:
    """What came of it, also where the loop was left before `done` could be told."""
    return None if _pending is None else _pending.result


def run_dir_instead(run_dir: str | Path | None) -> str | Path | None:
    """Where a guard writes: a rehearsal is no part of the run, and leaves nothing in it."""
    if _pending is None or run_dir is None:
        return run_dir
    folder = tempfile.mkdtemp(prefix="headway-replay-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def rehearse(guard: Guard, loader: Iterable[Any]) -> Iterator[Any]:
    """The captured batches, once; then `done`. A loop that comes again is told the same."""
    asked = _pending
    assert asked is not None
    if asked.result is None:
        yield from _run(asked, guard, loader)
    if asked.result is not None:
        asked.done(asked.result)


def rehearse_step(guard: Guard, template: Any, prepare: Callable[[Sequence[Any]], Run]) -> NoReturn:
    """The same where the step can be called: `prepare` is told of the batches and says how.

    `template` is a batch of the present loader.
    """
    asked = _pending
    assert asked is not None
    if asked.result is None:
        try:
            asked.result = by_calling(guard, asked.capsule, template, prepare)
        except HeadwayError as error:
            asked.result = refused(str(error))
    asked.done(asked.result)


def refuse(why: str) -> NoReturn:
    """Leave a script that cannot be rehearsed."""
    asked = _pending
    assert asked is not None
    asked.done(asked.result or refused(why))


def step_outside() -> None:
    """An optimizer steps, and no rehearsal is under way: the script must not train to its end."""
    if _pending is None:
        return
    _pending.steps += 1
    if _pending.steps > WARM_UP:
        refuse(
            "the script trains without a loop over guard(loader), where the captured batch is "
            "handed over: it was left after a few steps. Use guard(loader), or --call"
        )


def by_calling(
    guard: Guard, capsule: Capsule, template: Any, prepare: Callable[[Sequence[Any]], Run]
) -> Rehearsed:
    """Run the captured step by calling it, and look into it if it reproduces.

    Raises UsageError where something does not fit, and what the step raises, unless it has gone bad
    before.
    """
    batches = capsule.batches(template if capsule.needs_template else None)
    notes = put_in_place(capsule, guard.put_in_place)
    run = prepare(batches)
    restore_random(capsule)
    incident = incident_of(capsule, batches, run)
    first = Pass("again", batches)
    try:
        with closing(guard.give_again(incident, first)) as given:
            for batch in given:
                run(batch)
    except Exception as error:  # of the user's own step
        notes.append(f"the step then raised {in_a_line(error)}")
        result = judged(capsule, first.outcome, notes)
        if not result.reproduces:
            raise
    else:
        result = judged(capsule, first.outcome, notes)
    if result.reproduces:
        for _ in guard.look_into_again(incident, None):
            raise AssertionError("a step that can be called needs no loop")
    return with_reasons(result, guard, capsule)


def _run(asked: _Demand, guard: Guard, loader: Iterable[Any]) -> Iterator[Any]:
    capsule = asked.capsule
    try:
        batches = capsule.batches(_template(capsule, loader))
        notes = put_in_place(capsule, guard.put_in_place)
    except HeadwayError as error:
        asked.result = refused(str(error))
        return
    restore_random(capsule)
    incident = incident_of(capsule, batches)
    # The first time through the loop itself: before that, it has not bound its variables.
    first = Pass("again", batches)
    try:
        yield from guard.give_again(incident, first)
    finally:
        asked.result = judged(capsule, first.outcome, notes)
    if asked.result.reproduces:
        yield from guard.look_into_again(incident, sys._getframe().f_back)
        asked.result = with_reasons(asked.result, guard, capsule)


def with_reasons(result: Rehearsed, guard: Guard, capsule: Capsule) -> Rehearsed:
    """What came of it, and why, if the guard has found out."""
    found = guard.explanations
    return explained(result, found[-1], capsule) if found else result


def incident_of(capsule: Capsule, batches: Sequence[Any], run: Run | None = None) -> Incident:
    """The captured step; everything else must be in its place already."""
    return Incident(
        capsule.step,
        capsule.symptom,
        [Kept(batch, position=at, run=run) for at, batch in enumerate(batches)],
        rng.Moment(exact=True),
        None,
        capsule.limit,
        sample_names=capsule.sample_names,
    )


def _template(capsule: Capsule, loader: Iterable[Any]) -> Any:
    """A batch of the loader, where the captured one is of classes that only it can tell."""
    return next(iter(loader), None) if capsule.needs_template else None


def put_in_place(capsule: Capsule, put: Callable[[Mapping[str, Any]], None]) -> list[str]:
    """Weights, buffers and the like as they were; what the reader should know about it.

    Raises UsageError where they do not fit.
    """
    notes = [f"not kept: {item.what} ({item.why})" for item in capsule.left_out]
    if capsule.rows_only:
        notes.append("the batch is its guilty rows, repeated to its size")
    state = capsule.state()
    if state is None:
        return notes
    try:
        put(state)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UsageError(
            f"the captured state does not fit: {type(error).__name__}: {error}"
        ) from error
    return notes


def restore_random(capsule: Capsule) -> None:
    """The random numbers as they were before the step."""
    state = capsule.rng()
    if state is not None:
        rng.restore(state)
