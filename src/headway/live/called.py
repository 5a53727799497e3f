"""A captured incident without the script: one function builds the model, another makes the step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headway.config import Settings
from headway.errors import UsageError
from headway.live import rehearsal
from headway.live.guard import Guard
from headway.live.snapshots import Snapshots
from headway.replay.capsule import Capsule
from headway.replay.rehearsed import Rehearsed

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
        run = functools.partial(_step, model, step)
        return rehearsal.by_calling(guard, capsule, None, lambda batches: run)


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
