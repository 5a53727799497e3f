"""Guards that headway creates itself: for an unmodified script, or to run one captured step by
calling it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.config import Settings
from headway.errors import UsageError
from headway.explain.incident_file.incident_folder import IncidentFolder
from headway.explain.replay_outcome import ReplayOutcome
from headway.guard.guard import Guard
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.recorder import Recorder
from headway.guard.recovery.snapshots import Snapshots
from headway.rerun import in_script
from headway.rerun.protocol import RerunMoment
from headway.rerun.strategies.next_step import NextStepTrace

# A captured incident without the script: one function builds the model, another makes the step.

StepFunction = Callable[[Any, Any], Any]


def rerun_call(
    capsule: IncidentFolder, build: Callable[[], tuple[nn.Module, StepFunction]]
) -> ReplayOutcome:
    """Build, put the state in place, and run `step(model, batch)` with its backward pass.

    Raises UsageError where something does not fit, and whatever `build` and `step` raise.
    """
    model, step = _require_model(build())
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained or [torch.zeros(1, requires_grad=True)], lr=0.0)
    plan = Snapshots(every=0, on_disk=0, on_signal=False)
    with Guard(model, optimizer, settings=Settings(), snapshots=plan) as guard:
        run = functools.partial(_step, model, step)
        return in_script.rerun_by_calling(guard, capsule, None, lambda batches: run)


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


ScaledLoss: TypeAlias = tuple[GradScaler, Tensor, "weakref.ref[Tensor]"]
"""Who multiplied a loss, the loss as it was, and what came of it."""


class ScriptGuard(Guard):
    """A guard that a launch has made; all of a launch write one record."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        make_recorder: Callable[..., Recorder],
        rhythm: SamplingPlan,
        next_step: NextStepTrace,
        **more: Any,
    ) -> None:
        self._make_recorder = make_recorder  # type: ignore[assignment]
        self._rhythm = rhythm
        super().__init__(models, optimizers, **more)
        self._next_step = self._session.incidents.next_step = next_step
        self.models = tuple(models)
        self.optimizers = tuple(optimizers)

    @property
    def session(self) -> Any:
        """What others may add to: see `Session.extras`."""
        return self._session

    def hear_backward(self, roots: Sequence[Tensor], scaled: Sequence[ScaledLoss]) -> None:
        """The backward pass that made somebody look for models begins now.

        `scaled`: what a GradScaler has multiplied before anybody listened.
        """
        for scaler, loss, result in scaled:
            made = result()
            if made is not None:
                self._observer.scaled(scaler, loss, made)
        self._observer.backward_begins(roots)

    def rerun_last_step(self, frame: FrameType | None) -> None:
        """No step will follow: explain the last, if it was bad, while its loop is there."""
        if self.last_step_waits():
            self._session.incidents.rerun(RerunMoment.LAST_STEP, frame)

    def step_over(self) -> None:
        """A step is complete: explain the one before it, and trace the next if need be."""
        self._session.incidents.trace_next_step()

    def retire(self) -> None:
        """Stop watching and leave the record open: another guard takes over."""
        self._next_step.disarm()
        self._close(well=True, last=False)
