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
from headway.rerun.bad_step import MissedStep
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


TRACING_NEXT_STEP = "watching the step after a bad one"


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
        self.next_step = next_step
        self._untold: MissedStep | None = None
        """A bad step that was not run again and that the next one may explain."""
        super().__init__(models, optimizers, **more)
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
        """No step will follow: look into the last, if it went bad, while its loop is there."""
        if self.last_step_waits():
            self._look_into(frame)

    def step_over(self) -> None:
        """A step is complete: what was watched of it is told; the next is watched if need be."""
        incidents = self._session.incidents
        missed = incidents.collect_missed()
        explained = len(incidents.rerun_results.found)
        self._shield.spare(
            TRACING_NEXT_STEP,
            self.next_step.step_over,
            self._session,
            incidents.rerun_results,
            missed,
        )
        self._report_last()
        if missed is not None and len(incidents.rerun_results.found) == explained:
            self._shield.spare(TRACING_NEXT_STEP, self.next_step.arm, self._session, missed)
            self._untold = missed

    def _report_not_rerun(self) -> None:
        """The next step may tell more: see `step_over`."""

    def _report_last(self) -> None:
        untold, self._untold = self._untold, None
        if untold is not None:
            self._shield(self._session.incidents.report_not_rerun, untold)

    def _rerun_iteration(self, frame: FrameType | None, *, late: bool) -> None:
        incidents = self._session.incidents
        if incidents.iteration is not None:
            if self.next_step.knows():
                incidents.drop_pending()
                return
            self.next_step.disarm()
        explained = len(incidents.rerun_results.found)
        super()._rerun_iteration(frame, late=late)
        if len(incidents.rerun_results.found) > explained:
            incidents.missed = self._untold = None

    def _look_into(self, frame: FrameType | None = None) -> bool:
        incidents = self._session.incidents
        if incidents.pending and (frame is not None or incidents.framework() is not None):
            self.next_step.disarm()
        explained = len(incidents.rerun_results.found)
        done = super()._look_into(frame)
        if len(incidents.rerun_results.found) > explained:
            incidents.missed = None
        return done

    def _close(self, *, well: bool, last: bool = True) -> None:
        if not self._closed:
            self._report_last()
        super()._close(well=well, last=last)

    def retire(self) -> None:
        """Stop watching and leave the record open: another guard takes over."""
        self.next_step.disarm()
        self._close(well=True, last=False)
