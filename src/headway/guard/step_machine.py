"""The order of a guarded step: its states, its events, and the parts that each event is passed to.

    event            source                                state afterwards
    batch_wanted     the loader, or `guard.step_done()`    between, if an optimizer has stepped
    batch_handed     the loader, or `guard.saw_batch()`    forward
    backward_begins  torch's backward                      backward
    backward_ended   torch's backward                      forward
    begin_step       an optimizer's pre-hook               stepping
    skip_step        the same, or a GradScaler's overflow  skipped
    step_ended       an optimizer's post-hook              between, if no `batch_wanted` will come

A step is rerunning while one of its passes runs in the re-run sandbox; it then returns to the state
it was in. One step may have several batches and backward passes (gradient accumulation) and one
update per optimizer: a second optimizer that steps before the next batch belongs to the same step,
an optimizer that steps twice begins the next one.

The machine knows nothing about gradients (`OptimizerStep` measures them) and decides nothing about
bad steps (`StepOutcomes` does, when the numbers of a step have arrived).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.guard.endings.batch_history import RECENT_BATCHES, BatchHistory
from headway.guard.measure.parameter_index import StateInspector
from headway.guard.measure.step_measure import HostReadings
from headway.guard.memory.retained_graphs import GraphRetention
from headway.guard.recorder import WITH_SCALER, Recorder
from headway.guard.step_outcomes import StepCounter, StepOutcomes
from headway.output.notices import Notices
from headway.rerun.bad_step import StepContext
from headway.rerun.protocol import RerunMoment
from headway.rerun.recorded_batch import BatchOrigin, RecordedBatch
from headway.rundir.heartbeat import BACKWARD, DATA, FORWARD, USER
from headway.torch_adapters import tensor_values
from headway.torch_adapters.frames import current_frame
from headway.torch_adapters.optimizer_adapter import LossScaling
from headway.torch_adapters.process_groups.local_gradients import LocalGradientMonitor
from headway.torch_adapters.process_groups.rank_group import UNEVEN, RankGroup, is_wrapped_late
from headway.torch_adapters.saved_state import BufferBackup

if TYPE_CHECKING:
    from headway.guard.optimizer_step import OptimizerStep
    from headway.guard.recovery.recovery_manager import RecoveryManager
    from headway.rerun.controller import RerunController

MAX_BATCHES = 16
"""Batches of the current step that are kept, to name the bad one under gradient accumulation."""
MAX_COMPONENTS = 100
"""Maximum number of loss component names; a new name at every step would fill the memory."""
PARAMETER_SCAN_INTERVAL = 100
"""Steps between two scans for added, removed, frozen or unfrozen parameters."""


class StepState(Enum):
    """The state of the training loop."""

    BETWEEN = "between"
    """The loop body is complete: scheduler, scaler and EMA have been updated too."""
    FORWARD = "forward"
    BACKWARD = "backward"
    STEPPING = "stepping"
    """An optimizer applies its update, or has applied it and the loop body continues."""
    SKIPPED = "skipped"
    """The same, but the update was skipped."""
    RERUNNING = "rerunning"
    """A bad step runs again; nothing is updated or recorded."""


class StepMachine:
    """Receives the events of the training loop, and passes each on in the right order."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        counter: StepCounter,
        outcomes: StepOutcomes,
        recorder: Recorder,
        inspection: StateInspector,
        buffers: BufferBackup,
        scaling: LossScaling,
        retention: GraphRetention,
        host: HostReadings,
        ranks: RankGroup | None,
        origins: LocalGradientMonitor | None,
        notices: Notices,
    ) -> None:
        self._models = models
        self.counter = counter
        self._outcomes = outcomes
        self._recorder = recorder
        self._heartbeat = recorder.heartbeat
        self._inspection = inspection
        self._buffers = buffers
        self.step_captured = buffers.expect_replays
        """A step is recorded into a CUDA graph."""
        self._scaling = scaling
        self._retention = retention
        self._host = host
        self._ranks = ranks
        self._origins = origins
        self._notices = notices
        self.optimizer_steps: dict[int, OptimizerStep] = {}
        """By the identity of the optimizer."""
        self._recovery: RecoveryManager
        self._rerun: RerunController
        self._state = StepState.BETWEEN
        self._stepped: set[int] = set()
        """Optimizers that have stepped since the loop body was last complete."""
        self._batch_used = False
        """Whether an optimizer has stepped since the last batch."""
        self._announced = False
        """Whether a loader or an adapter reports that the loop body is complete."""
        self._started = False
        """Whether the state before the first step was kept."""
        self._saw_batch = False
        self.batch_history = BatchHistory()
        self._batches: deque[RecordedBatch] = deque(maxlen=MAX_BATCHES)
        self.recent: deque[Any] = deque(maxlen=RECENT_BATCHES)
        """The last batches that are on the host, to explain an error of the device."""
        self._keeps_recent: bool | None = None
        self._components: dict[str, Tensor] = {}
        self._component_names: set[str] = set()

    def connect(self, recovery: RecoveryManager, rerun: RerunController) -> None:
        """Set the parts that are built after the machine."""
        self._recovery, self._rerun, self._loop = recovery, rerun, rerun.self_fed_loop

    @property
    def state(self) -> StepState:
        return self._state if self._rerun.sandbox is None else StepState.RERUNNING

    @property
    def progress(self) -> tuple[int, StepState, int]:
        """Changes with every batch, backward pass and step; for the watchdog's thread."""
        try:
            position = self._batches[-1].position
        except IndexError:  # no batch, or cleared just now by the thread that trains
            position = -1
        return (self.counter.made, self._state, position)

    @property
    def in_body(self) -> bool:
        """Whether an optimizer has stepped and the loop body is not complete yet.

        A snapshot taken now would be half a step.
        """
        return bool(self._stepped)

    @property
    def latest(self) -> RecordedBatch | None:
        """The last batch that was handed to the loop."""
        return self._batches[-1] if self._batches else None

    # Events of the loader.

    def batch_wanted(self) -> None:
        """The loop requests the next batch, so its body is complete."""
        self._announced = True
        self._heartbeat.enter(DATA)
        if len(self.optimizer_steps) > 1 and not self._lags():
            self._outcomes.emit()  # no other will step in this body
        self._close_body()

    def batch_handed(
        self,
        batch: Any,
        waited: float | None,
        origin: BatchOrigin | None = None,
        run: Callable[[Any], Any] | None = None,
    ) -> None:
        """A batch is handed to the loop; `waited`: seconds that the loader took."""
        self._loop.batch_came()
        used, self._batch_used = self._batch_used, False
        if used or not any(step.tokens.filled for step in self.optimizer_steps.values()):
            # Between steps, changes to the buffers are the user's own: keep them.
            self._buffers.renew()
            self._rerun.step_begins(unused=() if used else self._batches)
            self._batches.clear()
        if not self._saw_batch:
            self._see_first_batch()
        position = self._batches[-1].position + 1 if self._batches else 0
        kept = RecordedBatch(batch, origin, position, run=run)
        self._batches.append(kept)
        if self._keeps_recent is None:
            self._keeps_recent = torch.cuda.is_initialized() and tensor_values.is_on_host(batch)
        if self._keeps_recent:
            self.recent.append(batch)
        if self._rerun.rng_before is None:
            samples = tensor_values.batch_size(batch) or 0
        else:
            tensors = tensor_values.attached_tensors(batch)
            samples = tensor_values.row_count(tensors) or 0
            kept.watch_for_changes(tensors, copy=self._rerun.copy_batches)
        self.batch_history.add(batch, samples)
        self._host.batch_handed(waited, samples, tensor_values.token_count(batch))
        self._state = StepState.FORWARD
        self._heartbeat.enter(FORWARD)

    def _see_first_batch(self) -> None:
        self._saw_batch = True
        if not self.counter.made:
            self._keep_first_state()
        # A batch is scanned only when a step goes bad: NaN may stand for "unknown" in healthy ones.
        self._recorder.event(0, "scan", {"roles": ["input"]})

    # Events of torch: see `patching`.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._state = StepState.BACKWARD
        self._heartbeat.enter(BACKWARD)
        if self._origins is not None and self._ranks is not None:
            self._origins.install()
            if self._origins.uneven and self._ranks.off != UNEVEN:
                self._ranks.off = UNEVEN
                self._recorder.event(self.counter.made, "uneven", {})
        self._retention.forward_over()
        for step in self.optimizer_steps.values():
            step.backward_begins()
        if not self._inspection.precision_known and roots:
            self._see_first_loss(roots)

    def _see_first_loss(self, roots: Sequence[Tensor]) -> None:
        scaled = self._scaling.scaler is not None
        self._inspection.precision(self.counter.current, roots, scaled=scaled)
        if self._ranks is None and is_wrapped_late(self._models):
            self._notices.once(
                "wrapped-late",
                "the model was wrapped in DistributedDataParallel after its guard was created: "
                "each rank is guarded on its own and may skip a step alone. Wrap it first",
            )

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._state = StepState.FORWARD
        if self._origins is not None:
            self._origins.backward_ended()
        losses = [*map(self._scaling.unscaled, roots)]
        components, self._components = self._components, {}
        if self._batches:
            self._batches[-1].losses.extend(losses)
        for step in self.optimizer_steps.values():
            step.backward_ended(losses, components)
        self._retention.backward_ended(self.counter.made, roots)

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, total: Tensor
    ) -> None:
        owned = [p for p in parameters if p.grad is not None]
        each = norms if norms is not None and len(norms) == len(owned) else None
        for step in self.optimizer_steps.values():
            if not step.inside:
                scale = self._scaling.carried_by(step.optimizer)
                step.measure.clipping(owned, each, scale)

    def clipped(self, total: Tensor, max_norm: float) -> None:
        for step in self.optimizer_steps.values():
            step.measure.clipped(total, max_norm)

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaling.scaled(scaler, loss, result)
        self._recorder.declare(WITH_SCALER)

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        step = self.optimizer_steps.get(id(optimizer))
        if step is not None:
            step.fired = False
            if step.vote is not None:
                step.vote.step_begins()

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        step = self.optimizer_steps.get(id(optimizer))
        if step is not None and not step.fired and scaler.is_enabled():
            step.skipped_by_scaler()
            self.skip_step()
            frame = current_frame(1)
            self.step_ended(frame)
            if self._rerun.pending and self._ranks is None:
                self._rerun.rerun(RerunMoment.AFTER_STEP, frame)
            self._outcomes.raise_if_halted()

    # Events of the guard.

    def components(self, named: Mapping[str, Tensor]) -> None:
        """The named parts of the loss whose backward comes next."""
        known = self._component_names
        room = MAX_COMPONENTS - len(known)
        known.update([name for name in named if name not in known][:room])
        self._components = {name: part for name, part in named.items() if name in known}
        if len(self._components) < len(named):
            self._notices.once(
                "components",
                f"more than {MAX_COMPONENTS} names of loss components: further ones are not "
                "recorded. Use the same name for the same part of the loss at every step",
            )

    def scaler_for(self, loss: Tensor) -> GradScaler | None:
        """The scaler that a loss still needs."""
        return self._scaling.needed_for(loss)

    # Events of the optimizers.

    def begin_step(self, step: OptimizerStep, context: StepContext) -> bool:
        """An optimizer is about to step: number its step, and add what is known about it.

        True for the first optimizer of a step.
        """
        key = id(step)
        if not self._stepped or key in self._stepped:
            self._keep_first_state()
            self.counter.made += 1
            self._stepped.clear()
            self._outcomes.last_good = True
            if self._rerun.follows_loops:
                self._loop.step_begins()
        self._stepped.add(key)
        self._batch_used = True
        self._state = StepState.STEPPING
        self._heartbeat.beat(self.counter.made)
        context.step, context.started = self.counter.made - 1, time.perf_counter()
        context.batches = tuple(self._batches)
        context.before, context.iteration = self._rerun.rng_before, self._loop.present
        known = context.before is not None and bool(context.batches)
        context.again = known or context.iteration is not None
        return len(self._stepped) == 1

    def skip_step(self) -> None:
        """The update of the optimizer that is stepping is skipped."""
        self._state = StepState.SKIPPED

    def host_values(self, context: StepContext) -> dict[str, float]:
        """What the host can measure about the step."""
        values = self._host.read(context)
        if context.step % PARAMETER_SCAN_INTERVAL == 0:
            self._buffers.find_new_buffers()
            self._inspection.parameters(context.step)
        return values

    def step_ended(self, frame: FrameType | None) -> None:
        """An optimizer has stepped, or its update was skipped; `frame` called it."""
        self._heartbeat.enter(USER)
        recovery = self._recovery
        if recovery.going_back is not None:
            recovery.finish_roll_back()
        all_stepped = len(self._stepped) == len(self.optimizer_steps)
        if self._rerun.follows_loops:
            self._loop.step_ended(frame)
            followed = self._loop.present is not None
            if all_stepped and len(self._stepped) > 1 and followed and not self._lags():
                self._outcomes.emit()  # now: the loop is still where the step went bad
        else:
            self._loop.forget()
        if all_stepped and not self._announced:
            self._close_body()

    def flush(self) -> None:
        """Deliver the numbers that are still on the device."""
        for step in self.optimizer_steps.values():
            step.transfer.flush()
        self._outcomes.emit()

    def exclude_time(self, seconds: float) -> None:
        """Leave this time out of the duration of the step."""
        self._host.exclude_time(seconds)
        for step in self.optimizer_steps.values():
            if step.vote is not None:
                step.vote.exclude_time(seconds)

    def count_from(self, step: int) -> None:
        """Set the number of the next step."""
        self.counter.made = self.counter.first = step
        self._stepped.clear()

    def _lags(self) -> bool:
        return any(step.transfer.lag for step in self.optimizer_steps.values())

    def _keep_first_state(self) -> None:
        """Keep the state before the first step, once whatever the user loads is loaded."""
        if not self._started:
            self._started = True
            self._recovery.before_first_step()

    def _close_body(self) -> None:
        if self._stepped:
            self._stepped.clear()
            self._state = StepState.BETWEEN
            recovery = self._recovery
            if recovery.going_back is not None or self.counter.made >= recovery.due_at:
                recovery.boundary(good=self._outcomes.last_good)
