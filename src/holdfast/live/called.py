"""A captured incident without the script: one function builds the model, another makes the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.config import Settings
from holdfast.errors import UsageError
from holdfast.live import rehearsal
from holdfast.live.guard import Guard
from holdfast.live.snapshots import Snapshots
from holdfast.replay.capsule import Capsule
from holdfast.replay.passes import Pass
from holdfast.replay.rehearsed import Rehearsed, judged

Step = Callable[[Any, Any], Any]


def rehearse_call(capsule: Capsule, build: Callable[[], tuple[nn.Module, Step]]) -> Rehearsed:
    """Build, put the state in place, and run `step(model, batch)` with its backward pass.

    Raises UsageError where something does not fit, and whatever `build` and `step` raise.
    """
    model, step = _built(build())
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained or [torch.zeros(1, requires_grad=True)], lr=0.0)
    plan = Snapshots(every=0, on_disk=0, on_signal=False)
    with Guard(model, optimizer, settings=Settings(), snapshots=plan) as guard:
        notes = rehearsal.put_in_place(capsule, guard.put_in_place)
        batches = capsule.batches()
        rehearsal.restore_random(capsule)
        incident = rehearsal.incident_of(capsule, batches)
        for kept in incident.batches:
            kept.run = lambda batch: _step(model, step, batch)
        first = Pass("again", batches)
        _run(guard, incident, first)
        found = judged(capsule, first.outcome, notes)
        if found.reproduces:
            for _ in guard.look_into_again(incident, None):
                raise AssertionError("a step that can be called needs no loop")
            found = rehearsal.with_reasons(found, guard, capsule)
    return found


def _run(guard: Guard, incident: Any, first: Pass) -> None:
    runs: Sequence[Any] = [kept.run for kept in incident.batches]
    for run, batch in zip(runs, guard.give_again(incident, first), strict=True):
        run(batch)


def _step(model: nn.Module, step: Step, batch: Any) -> None:
    loss = step(model, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise UsageError(f"step(model, batch) must return a loss of one number: got {loss!r:.60}")
    loss.backward()


def _built(made: Any) -> tuple[nn.Module, Step]:
    if isinstance(made, tuple) and len(made) == 2:
        model, step = made
        if isinstance(model, nn.Module) and callable(step):
            return model, step
    raise UsageError(
        f"the function must return (model, step), with step(model, batch) -> loss: got {made!r:.60}"
    )
