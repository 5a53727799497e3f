"""A captured incident in the user's own loop, instead of training.

`holdfast replay` sets the demand before it runs the script. The first loop over `guard(loader)`
then gets the captured batch: weights, buffers, scaler and random numbers are put in place, no
optimizer moves anything, and what comes of it goes to `done`, which leaves the script.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.optim import Optimizer

from holdfast.errors import HoldfastError, UsageError
from holdfast.live import seams
from holdfast.live.brake import HostBrake
from holdfast.live.closures import FirstAnswer, find_closure, with_closure
from holdfast.live.gradients_seen import GradientsSeen
from holdfast.replay.capsule import Capsule
from holdfast.replay.rehearsed import Rehearsed, judged, refused
from holdfast.torch_tools import rng

if TYPE_CHECKING:
    from holdfast.live.guard import Guard

Done = Callable[[Rehearsed], NoReturn]


@dataclass(slots=True)
class _Demand:
    capsule: Capsule
    done: Done
    result: Rehearsed | None = None


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
    folder = tempfile.mkdtemp(prefix="holdfast-replay-")
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


def _run(asked: _Demand, guard: Guard, loader: Iterable[Any]) -> Iterator[Any]:
    capsule = asked.capsule
    try:
        batches = capsule.batches(_template(capsule, loader))
        notes = put_in_place(capsule, guard.put_in_place)
    except HoldfastError as error:
        asked.result = refused(str(error))
        return
    seen = GradientsSeen(guard.named_parameters())
    with ExitStack() as within:
        seams.install(seen)
        within.callback(seams.uninstall, seen)
        for optimizer in guard.stand_aside():
            within.enter_context(_held(optimizer))
        within.callback(lambda: _conclude(asked, seen, notes))
        restore_random(capsule)
        yield from batches


def _conclude(asked: _Demand, seen: GradientsSeen, notes: list[str]) -> None:
    asked.result = judged(asked.capsule, seen.outcome, notes)


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


def _held(optimizer: Optimizer) -> ExitStack:
    """While it lasts, steps of the optimizer move nothing."""
    brake = HostBrake()
    stack = ExitStack()
    before = optimizer.register_step_pre_hook(partial(_hold, brake))
    after = optimizer.register_step_post_hook(lambda *call: brake.release())
    stack.callback(after.remove)
    stack.callback(before.remove)
    return stack


def _hold(brake: HostBrake, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    closure = find_closure(args, kwargs)
    call = None
    if closure is not None:  # it makes the backward pass: run once, and never searched along
        with torch.enable_grad():
            loss = closure()
        call = with_closure(args, kwargs, FirstAnswer(closure, loss, held=True))
    brake.hold([p for group in optimizer.param_groups for p in group["params"]])
    return call
