"""Runs a captured incident again by calling its step, and finds out why it failed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.errors import UsageError
from headway.explain.explanation import Explanation
from headway.explain.failing_step import StepPass
from headway.explain.incident_file.incident_folder import IncidentFolder
from headway.explain.replay_outcome import ReplayOutcome, add_explanation, judge_replay
from headway.rerun.bad_step import BadStep
from headway.rerun.recorded_batch import RecordedBatch
from headway.rerun.sandbox import format_error
from headway.torch_adapters import rng

Run = Callable[[Any], Any]
"""Forward and backward over a batch."""
StepFunction = Callable[[Any, Any], Any]
"""step(model, batch) -> loss"""
BuildStep = Callable[[], tuple[nn.Module, StepFunction]]


class ReplayGuard(Protocol):
    """The part of a script's guard that runs a captured incident again."""

    @property
    def explanations(self) -> Sequence[Explanation]: ...

    def restore_captured(self, state: Mapping[str, Any]) -> None:
        """Load the captured state. Raises UsageError where it does not fit."""

    def redeliver_captured(self, incident: BadStep, one: StepPass) -> Generator[Any, None, None]:
        """The captured batches for the loop, while nothing is updated."""

    def explain_captured_step(self, incident: BadStep, frame: FrameType | None) -> Iterator[Any]:
        """Find out why the captured step failed."""


MakeGuard = Callable[[nn.Module, Optimizer], AbstractContextManager[ReplayGuard]]


def rerun_call(capsule: IncidentFolder, build: BuildStep, make_guard: MakeGuard) -> ReplayOutcome:
    """Build the model, load the captured state, and run `step(model, batch)` with its backward."""
    model, step = _require_model(build())
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained or [torch.zeros(1, requires_grad=True)], lr=0.0)
    with make_guard(model, optimizer) as guard:
        run = functools.partial(_step, model, step)
        return rerun_by_calling(guard, capsule, None, lambda batches: run)


def _step(model: nn.Module, step: StepFunction, batch: Any) -> None:
    loss = step(model, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise UsageError(f"step(model, batch) must return a loss of one number: got {loss!r:.60}")
    loss.backward()


def _require_model(made: Any) -> tuple[nn.Module, StepFunction]:
    if isinstance(made, tuple) and len(made) == 2:
        model, step = made
        if isinstance(model, nn.Module) and callable(step):
            return model, step
    raise UsageError(
        f"the function must return (model, step), with step(model, batch) -> loss: got {made!r:.60}"
    )


def rerun_by_calling(
    guard: ReplayGuard,
    capsule: IncidentFolder,
    template: Any,
    prepare: Callable[[Sequence[Any]], Run],
) -> ReplayOutcome:
    """Run the captured step by calling it, and find the reason if it fails again.

    Raises UsageError where something does not fit, and what the step raises, unless it has failed
    in the captured way before.
    """
    batches = capsule.batches(template if capsule.needs_template else None)
    notes = restore_captured_state(capsule, guard.restore_captured)
    run = prepare(batches)
    restore_captured_rng(capsule)
    incident = bad_step_of(capsule, batches, run)
    first = StepPass("again", batches)
    try:
        with closing(guard.redeliver_captured(incident, first)) as given:
            for batch in given:
                run(batch)
    except Exception as error:  # of the user's own step
        notes.append(f"the step then raised {format_error(error)}")
        result = judge_replay(capsule, first.outcome, notes)
        if not result.reproduces:
            raise
    else:
        result = judge_replay(capsule, first.outcome, notes)
    if result.reproduces:
        for _ in guard.explain_captured_step(incident, None):
            raise AssertionError("a step that can be called needs no loop")
    return add_reasons(result, guard, capsule)


def add_reasons(
    result: ReplayOutcome, guard: ReplayGuard, capsule: IncidentFolder
) -> ReplayOutcome:
    """The outcome, with the explanation if the guard has found one."""
    found = guard.explanations
    return add_explanation(result, found[-1], capsule) if found else result


def bad_step_of(capsule: IncidentFolder, batches: Sequence[Any], run: Run | None = None) -> BadStep:
    """The captured step; the state must have been restored before."""
    return BadStep(
        capsule.step,
        capsule.symptom,
        [RecordedBatch(batch, position=at, run=run) for at, batch in enumerate(batches)],
        rng.RngState(exact=True),
        None,
        capsule.limit,
        sample_names=capsule.sample_names,
    )


def restore_captured_state(
    capsule: IncidentFolder, put: Callable[[Mapping[str, Any]], None]
) -> list[str]:
    """Load weights, buffers and other state; returns notes for the user about what is missing.

    Raises UsageError where they do not fit.
    """
    notes = [f"not kept: {item.what} ({item.why})" for item in capsule.left_out]
    if capsule.rows_only:
        notes.append("the batch consists of its bad rows, repeated to its size")
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


def restore_captured_rng(capsule: IncidentFolder) -> None:
    """Restore the random numbers from before the step."""
    state = capsule.rng()
    if state is not None:
        rng.restore(state)
