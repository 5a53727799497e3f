"""A captured incident without the script: one function builds the model, another makes the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from holdfast.errors import UsageError
from holdfast.live import rehearsal
from holdfast.live.gradients_seen import GradientsSeen
from holdfast.live.holdings import Holdings
from holdfast.live.roster import users_model
from holdfast.replay.capsule import Capsule
from holdfast.replay.rehearsed import Rehearsed, judged

Step = Callable[[Any, Any], Any]


def rehearse_call(capsule: Capsule, build: Callable[[], tuple[nn.Module, Step]]) -> Rehearsed:
    """Build, put the state in place, and run `step(model, batch)` with its backward pass.

    Raises UsageError where something does not fit, and whatever `build` and `step` raise.
    """
    model, step = _built(build())
    notes = rehearsal.put_in_place(
        capsule, Holdings([users_model(model)], [], {}).restore_for_replay
    )
    batches = capsule.batches()
    seen = GradientsSeen(dict(users_model(model).named_parameters()))
    rehearsal.restore_random(capsule)
    for batch in batches:
        loss = step(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise UsageError(
                f"step(model, batch) must return a loss of one number: got {loss!r:.60}"
            )
        if loss.requires_grad:
            loss.backward()
        seen.backward_ended([loss])
    return judged(capsule, seen.outcome, notes)


def _built(made: Any) -> tuple[nn.Module, Step]:
    if isinstance(made, tuple) and len(made) == 2:
        model, step = made
        if isinstance(model, nn.Module) and callable(step):
            return model, step
    raise UsageError(
        f"the function must return (model, step), with step(model, batch) -> loss: got {made!r:.60}"
    )
