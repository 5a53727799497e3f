"""Guards that headway creates itself: for an unmodified script, or to run one captured step by
calling it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.config import Settings
from headway.explain.incident_file.incident_folder import IncidentFolder
from headway.explain.replay_outcome import ReplayOutcome
from headway.guard.guard import Guard
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.recorder import Recorder
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.step_hooks import NoMissingSteps
from headway.rerun import in_script
from headway.rerun.by_call import BuildStep, rerun_call
from headway.rerun.protocol import RerunMoment
from headway.rerun.recorded_batch import BatchOrigin
from headway.rerun.step_tracer import StepTracer
from headway.torch_adapters.tensor_values import batch_tensors

ScaledLoss: TypeAlias = tuple[GradScaler, Tensor, "weakref.ref[Tensor]"]
"""A scaler, a loss, and the scaled loss."""


def replay_call(incident: IncidentFolder, build: BuildStep) -> ReplayOutcome:
    """Replay a captured incident without its script: `build()` returns (model, step), and
    `step(model, batch)` returns the loss.

    Raises UsageError where something does not fit, and whatever `build` and `step` raise.
    """
    return rerun_call(incident, build, _make_replay_guard)


def _make_replay_guard(model: nn.Module, optimizer: Optimizer) -> Guard:
    """A guard that neither reads settings nor writes snapshots."""
    plan = Snapshots(every=0, on_disk=0, on_signal=False)
    return Guard(model, optimizer, settings=Settings(), snapshots=plan)


MAX_READ_AHEAD = 64
"""Batches that a framework may draw before it uses the first of them: those of one update."""


class ScriptGuard(Guard):
    """A guard that a launcher has created; all of one launcher write one record."""

    _make_missing_steps = NoMissingSteps  # the launcher sees the steps of every optimizer
    _print_end = staticmethod(lambda *_: None)  # `run` and `check` print a summary

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        make_recorder: Callable[..., Recorder],
        sampling_plan: SamplingPlan,
        tracer: StepTracer,
        **more: Any,
    ) -> None:
        self._make_recorder = make_recorder  # type: ignore[assignment]
        self._sampling_plan = sampling_plan
        super().__init__(models, optimizers, **more)
        self._session.rerun.unexplained.tracer = tracer
        self._session.rerun.rerun_results.owns_loop = False
        tracer.use_host(self._session)
        self._drawn: deque[tuple[frozenset[int], BatchOrigin]] = deque(maxlen=MAX_READ_AHEAD)
        """The memory of batches that loaders have handed to a framework, and their origins."""
        self._template: tuple[Any, ...] = ()
        """For the replay of a captured incident: a batch of the script's own loader."""
        self.models = tuple(models)
        self.optimizers = tuple(optimizers)

    @property
    def session(self) -> Any:
        """For observers, which add signals to its steps."""
        return self._session

    def replay_backward_start(self, roots: Sequence[Tensor], scaled: Sequence[ScaledLoss]) -> None:
        """The backward pass begins at which the models were found.

        `scaled`: losses that a GradScaler has scaled before this guard existed.
        """
        for scaler, loss, result in scaled:
            made = result()
            if made is not None:
                self._hooks.observer.scaled(scaler, loss, made)
        self._hooks.observer.backward_begins(roots)

    def batch_drawn(
        self, batch: Any, waited: float, origin: BatchOrigin | None, *, reported: bool
    ) -> None:
        """A loader hands out a batch; `reported`: a framework reports it when it is used."""
        if in_script.is_requested():
            self._template = (batch,)
        if not reported:
            self.saw_batch(batch, waited, origin)
        elif origin is not None:
            self._drawn.append((_addresses(batch), origin))

    def saw_batch(
        self,
        batch: Any,
        waited: float | None = None,
        origin: BatchOrigin | None = None,
        run: Callable[[Any], Any] | None = None,
    ) -> None:
        if origin is None and self._drawn:
            origin = self._find_origin(batch)
        super().saw_batch(batch, waited, origin, run)

    def _find_origin(self, batch: Any) -> BatchOrigin | None:
        """The origin of a batch that a framework reports: frameworks read ahead."""
        used = _addresses(batch)
        # Some of its tensors: a hook may have replaced others. The latest that has them, because
        # the memory of those before it may have been used again.
        found = (origin for drawn, origin in reversed(self._drawn) if drawn & used)
        return next(found, None)

    @property
    def rerun_pending(self) -> bool:
        """Whether a bad step waits to be run again, or a captured one is to be replayed."""
        if in_script.is_requested():
            return torch.is_grad_enabled()  # not in the loop of an evaluation
        return super().rerun_pending

    def rerun_in_loop(self, frame: FrameType | None) -> Iterator[Any]:
        """See `Guard.rerun_in_loop`; a captured step is replayed instead of the next one."""
        if in_script.is_requested():
            return in_script.rerun_in_loop(self, self._template)
        return super().rerun_in_loop(frame)

    def rerun_last_step(self, frame: FrameType | None) -> None:
        """No step will follow: explain the last, if it was bad, while its loop is there."""
        if self.rerun_pending_at_end():
            self._session.rerun.rerun(RerunMoment.LAST_STEP, frame)

    def step_over(self) -> None:
        """A GradScaler has skipped a step."""
        self._session.rerun.step_complete()

    def retire(self) -> None:
        """Stop watching and leave the record open: another guard takes over."""
        self._close(well=True, last=False)


def _addresses(batch: Any) -> frozenset[int]:
    """Where the tensors of a batch are in memory."""
    plain = (tensor for tensor in batch_tensors(batch) if tensor.layout is torch.strided)
    return frozenset(tensor.data_ptr() for tensor in plain)
