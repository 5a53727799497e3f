"""Connects the parts behind a guard, and keeps what is known of the current step.

The guard is what the user holds; the session is what the hooks, the seams and the loader talk to.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway import registry
from headway.core.bound import Bound
from headway.core.numbers import round_digits
from headway.errors import TrainingHalted
from headway.guard.brake.adaptive_clipper import AdaptiveClippers
from headway.guard.brake.clip_rules import AdaptiveClip
from headway.guard.measure import sampling
from headway.guard.measure.gradient_measure import to_one_device
from headway.guard.measure.parameter_index import StateInspector
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.measure.step_record import ExtraSignals, Readings, StepRecordBuilder
from headway.guard.memory.leaks import LeakTracer
from headway.guard.memory.retained_graphs import GraphRetention
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.ranks.rank_table import COLUMNS, NONFINITE, RankField, RankTable
from headway.guard.ranks.rank_vote import StepVote
from headway.guard.recorder import WITH_SCALER, Recorder
from headway.guard.recovery.quarantine import Quarantine
from headway.guard.recovery.recovery_manager import RecoveryManager
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.recovery.training_state import TrainingState
from headway.output.notices import Notices
from headway.policy import Action, BackOff, Policy, Rung, StepVerdict
from headway.rerun.bad_step import StepContext
from headway.rerun.batch_identity import BatchOrigin, RecordedBatch
from headway.rerun.controller import RerunController
from headway.rerun.rerun_group import RerunGroup
from headway.torch_adapters import nonfinite_scan
from headway.torch_adapters.frames import current_frame
from headway.torch_adapters.local_gradients import LocalGradientMonitor
from headway.torch_adapters.optimizer_adapter import LossScaling
from headway.torch_adapters.patching import allow_device_sync
from headway.torch_adapters.rank_group import UNEVEN, RankGroup, SingleProcess, is_wrapped_late
from headway.torch_adapters.saved_state import BufferBackup

MAX_BATCHES = 16
"""Batches of the current step that are remembered, for naming the bad one under accumulation."""
MAX_COMPONENTS = 100
"""Names of loss components that are recorded; a new name at every step would fill the memory."""
PARAMETER_SCAN_INTERVAL = 100
"""Steps between two looks at which parameters there are and which of them train."""
RESCAN_INTERVAL = 10
"""Under a streak of bad steps the state is scanned at the first and then every so many."""


class Session:
    """One guarded training."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        *,
        scaler: GradScaler | None,
        max_norm: float | AdaptiveClip | None,
        policy: Policy,
        recorder: Recorder,
        notices: Notices,
        keep: Mapping[str, Any],
        snapshots: Snapshots,
        together: SingleProcess,
        ranks: RankGroup | None = None,
        origins: LocalGradientMonitor | None = None,
        rhythm: SamplingPlan | None = None,
    ) -> None:
        rule = max_norm if isinstance(max_norm, AdaptiveClip) else None
        self.max_norm = None if isinstance(max_norm, AdaptiveClip) else max_norm
        self.clip = AdaptiveClippers(rule, notices)
        self.ranks = ranks
        """The ranks that decide together; None for one that trains alone."""
        self._origins = origins
        self.policy = policy
        self.rhythm = rhythm or SamplingPlan()
        self.extra_signals = ExtraSignals()
        """What others have measured about the coming step."""
        self.recorder = recorder
        self.quarantine = Quarantine(recorder.event, notices, avoid=policy.avoid_bad_batches)
        self.buffers = BufferBackup(models)
        self.retention = GraphRetention(recorder.event, self.rhythm.graphs_every)
        self.leak_tracer = LeakTracer(recorder.event)
        self.halted: TrainingHalted | None = None
        self._has_halted = False
        self.inspection = StateInspector(models, optimizers, recorder, notices)
        self.models = models
        self.optimizers = optimizers
        self.agreement = together
        self.scaling = LossScaling(scaler)
        self._notices = notices
        bound = registry.get("HD207").bound or Bound("grad_norm")
        self.watches = {
            id(optimizer): OptimizerStep(self, optimizer, number, bound)
            for number, optimizer in enumerate(optimizers)
        }
        writer = recorder.writer
        self.recovery = RecoveryManager(
            self,
            TrainingState(models, optimizers, keep),
            snapshots,
            run_dir=writer.path if writer is not None and not writer.broken else None,
            notices=notices,
            together=together,
        )
        self.rerun_group = (
            None
            if ranks is None or origins is None
            else RerunGroup(ranks, origins, models, together)
        )
        """The other ranks, for steps that are run again."""
        self.incidents = RerunController(self, policy, notices)
        self.turns = self.incidents.self_fed_loop
        self._usual: dict[str, float] = {}
        self._step = -1
        self._stepped: set[int] = set()
        self._batch_turned = True
        self._step_made = False
        self._body_open = False
        self._boundaries = False
        self._last_good = True
        self._began = 0.0
        self._waited: float | None = None
        self._samples = 0
        self._batches: deque[RecordedBatch] = deque(maxlen=MAX_BATCHES)
        self._assembly: StepRecordBuilder | None = None
        self._passed: dict[str, Tensor] = {}
        self._components: set[str] = set()
        self._rates: list[float] = []
        self._batch_seen = False
        if ranks is not None:
            recorder.extend_axis("rank", [str(rank) for rank in range(ranks.size)])
            recorder.declare([*COLUMNS, NONFINITE])
        self.inspection.at_start()
        if self.avoiding and recorder.writer is not None:
            self.quarantine.read_back(recorder.writer.path / "events.jsonl")

    @property
    def step(self) -> int:
        """The step being made, counted from 0."""
        return max(self._step, 0)

    @property
    def in_body(self) -> bool:
        """Whether the loop's body is not complete: a snapshot now would be half a step."""
        return self._body_open

    @property
    def steps(self) -> int:
        """How many steps were made so far."""
        return self._step + 1

    def count_from(self, step: int) -> None:
        """The next step is called this."""
        self._step = step - 1

    # What the loader tells.

    def batch_wanted(self) -> None:
        """The loop asks for the next batch: the previous step, if any was made, is over."""
        self._boundaries = True
        if self._stepped:
            self._batch_turned = True
            if not any(watch.transfer.lag for watch in self.watches.values()):
                self._emit()  # of several optimizers, whoever stepped has said so
        self._boundary()

    @property
    def avoiding(self) -> bool:
        """Whether batches that were held back before are to be left out."""
        return self.policy.avoid_bad_batches

    def avoids(self, kept: RecordedBatch) -> bool:
        """Whether a batch that came out of the loader shall not reach the loop."""
        return self.quarantine.avoids(self.steps, kept)

    def batch_came(
        self,
        batch: Any,
        waited: float | None,
        origin: BatchOrigin | None = None,
        run: Callable[[Any], Any] | None = None,
    ) -> None:
        """A batch is handed to the loop."""
        self.turns.batch_came()
        made, self._step_made = self._step_made, False
        if made or not any(watch.tokens.filled for watch in self.watches.values()):
            # Between steps: what the user did to the buffers meanwhile is meant.
            self.buffers.renew()
            self._batches.clear()
            self.incidents.step_begins()
        if not self._batch_seen:
            self._batch_seen = True
            if self._step < 0:
                self.recovery.before_first_step()
            # Looked at whenever a step goes bad: what does no harm (NaN for "unknown") is meant.
            self.recorder.event(0, "scan", {"roles": ["input"]})
        position = self._batches[-1].position + 1 if self._batches else 0
        kept = RecordedBatch(batch, origin, position, run=run)
        if self.incidents.moment is not None:
            kept.watch_for_changes(copy=self.incidents.changing)
        self._batches.append(kept)
        if waited is not None:
            self._waited = (self._waited or 0.0) + waited
        self._samples += nonfinite_scan.batch_size(batch) or 0

    # What the seams tell.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._origins is not None and self.ranks is not None:
            self._origins.install()
            if self._origins.uneven:
                self.ranks.off = UNEVEN
        self.retention.forward_over()
        for watch in self.watches.values():
            watch.backward_begins()
        if not self.inspection.precision_known and roots:
            scaled = self.scaling.scaler is not None
            self.inspection.precision(self.step, roots, scaled=scaled)
            if self.ranks is None and is_wrapped_late(self.models):
                self._notices.once(
                    "wrapped-late",
                    "the model was put into DistributedDataParallel after its guard was made: "
                    "each rank is guarded on its own and may skip a step alone. Wrap it first",
                )

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._origins is not None:
            self._origins.backward_ended()
        losses = [self.scaling.unscaled(root) for root in roots]
        passed, self._passed = self._passed, {}
        if self._batches:
            self._batches[-1].losses.extend(losses)
        for watch in self.watches.values():
            watch.backward_ended(losses, passed)
        self.retention.backward_ended(self.steps, roots)

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, total: Tensor
    ) -> None:
        owned = [p for p in parameters if p.grad is not None]
        each = norms if norms is not None and len(norms) == len(owned) else None
        for watch in self.watches.values():
            watch.clipping(owned, each, self.scaling.carried_by(watch.optimizer))

    def clipped(self, total: Tensor, max_norm: float) -> None:
        for watch in self.watches.values():
            watch.clipped(total, max_norm)

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self.scaling.scaled(scaler, loss, result)
        self.recorder.declare(WITH_SCALER)

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        watch = self.watches.get(id(optimizer))
        if watch is not None:
            watch.fired = False
            if watch.vote is not None:
                watch.vote.step_begins()

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        watch = self.watches.get(id(optimizer))
        if watch is not None and not watch.fired and scaler.is_enabled():
            watch.skipped_by_scaler()
            self.step_ended()
            self.raise_if_halted()

    # What the guard tells.

    def components(self, named: Mapping[str, Tensor]) -> None:
        """The named parts of the loss whose backward comes next."""
        room = MAX_COMPONENTS - len(self._components)
        self._components.update([name for name in named if name not in self._components][:room])
        self._passed = {name: part for name, part in named.items() if name in self._components}
        if len(self._passed) < len(named):
            self._notices.once(
                "components",
                f"more than {MAX_COMPONENTS} names of loss components: further ones are not "
                "recorded; a name stands for one part of the loss throughout the run",
            )

    def scaler_for(self, loss: Tensor) -> GradScaler | None:
        """The scaler that a loss still needs."""
        return self.scaling.needed_for(loss)

    # What the watches ask.

    def vote_for(self, optimizer: Optimizer, lag: int) -> StepVote | None:
        """An optimizer's part in the agreement of the ranks."""
        if self.ranks is None or self._origins is None:
            return None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return StepVote(self.ranks, self._origins, parameters, lag, self.rhythm.weights_every)

    def begin_step(self, watch: OptimizerStep) -> tuple[int, float]:
        """(number of the step this optimizer step belongs to, time it began)."""
        if id(watch) in self._stepped or self._batch_turned or self._step < 0:
            self.recovery.before_first_step()
            self._step += 1
            self._stepped.clear()
            self._batch_turned = False
            self._last_good = True
            if self.incidents.looking:
                self.turns.step_begins()
        self._stepped.add(id(watch))
        self._step_made = self._body_open = True
        return self._step, time.perf_counter()

    def first_of_step(self, watch: OptimizerStep) -> bool:
        """Whether this optimizer opened the present step."""
        return self._stepped == {id(watch)}

    def host_values(self, note: StepContext) -> dict[str, float]:
        """What the host can say about the step by itself."""
        values: dict[str, float] = {}
        if self._began:
            elapsed = note.started - self._began
            values["step_time_s"] = round_digits(elapsed)
            if self._samples:
                values["samples_per_s"] = round_digits(self._samples / max(elapsed, 1e-9))
        if self._waited is not None:
            values["loader_wait_s"] = round_digits(self._waited)
        self._began, self._waited, self._samples = note.started, None, 0
        if note.sampled:
            resident = sampling.host_rss_bytes()
            if resident is not None:
                values["host_rss_bytes"] = float(resident)
            for parameter in note.parameters[:1]:
                allocated = sampling.device_allocated_bytes(parameter.device)
                if allocated is not None:
                    values["device_allocated_bytes"] = float(allocated)
            if not self.retention.many:  # they explain what grows, better than allocations could
                self.leak_tracer.sampled(note.step, values)
        kept = self.retention.reading()
        if kept is not None:
            values["graphs_kept"] = kept
        if note.step % PARAMETER_SCAN_INTERVAL == 0:
            self.buffers.look_again()
            self.inspection.parameters(note.step)
        return values

    @property
    def latest(self) -> RecordedBatch | None:
        """The batch that the loop has now."""
        return self._batches[-1] if self._batches else None

    def batches_of_step(self) -> Sequence[RecordedBatch]:
        return tuple(self._batches)

    def scale_tensor(self) -> Tensor | None:
        """The loss scale, on its device."""
        return self.scaling.scale()

    def buffer_norms(self) -> tuple[list[int], Tensor] | None:
        """Norms of the floating-point buffers that training changes."""
        found = [
            (at, buffer.detach())
            for at in sorted(self.buffers.changing)
            if (buffer := self.buffers.current(at)) is not None and buffer.is_floating_point()
        ]
        if not found:
            return None
        norms = list(torch._foreach_norm([buffer for _, buffer in found], 2.0))
        return [at for at, _ in found], torch.stack(to_one_device(norms))

    def stepped_without_gradients(self) -> None:
        """`optimizer.step()` was called and no parameter had a gradient."""
        self._notices.once(
            "no-gradients",
            "optimizer.step() was called, but no parameter has a gradient: was backward() called, "
            "and on a loss that depends on the model? Nothing was updated",
        )

    # When the numbers of a step have arrived.

    def deliver(
        self,
        watch: OptimizerStep,
        note: StepContext,
        readings: Readings,
        *,
        nonfinite: bool,
        spike: bool,
        tally: RankTable | None = None,
    ) -> None:
        """One optimizer's part of a step is complete."""
        if self._assembly is not None and self._assembly.step != note.step:
            self._emit()
        if self._assembly is None:
            self._assembly = StepRecordBuilder(note.step, optimizers=len(self.watches))
        assembly = self._assembly
        assembly.add(watch.suffix, note, readings, self.inspection.parameter_index.positions)
        if tally is not None and self.ranks is not None:
            assembly.add_ranks(tally, note, self.ranks, bad=nonfinite or spike)
        loss = readings.get("loss", (0.0,))[0]
        poisoned = () if tally is None else _poisoned(tally)
        # A scaler's skip is its search for a scale, unless the loss itself is no number.
        if "scaler_skipped" not in note.values or not math.isfinite(loss) or poisoned:
            bad = nonfinite or (spike and self.policy.hold_spikes)
            verdict = StepVerdict(
                note.step,
                nonfinite=bad and nonfinite,
                spike=bad and not nonfinite,
                poisoned=poisoned,
            )
            assembly.verdicts.append((verdict, note, watch.suffix))
        if len(self.watches) == 1:
            self._emit()

    def step_ended(self) -> None:
        """An optimizer has stepped, or was held back."""
        self.recovery.after_step()
        if self.incidents.looking:
            self.turns.step_ended(current_frame(1))
            all_made = len(self._stepped) == len(self.watches) > 1
            late = any(watch.transfer.lag for watch in self.watches.values())
            if all_made and not late and self.turns.present is not None:
                self._emit()  # the loop is where it went bad, if it did
        else:
            self.turns.forget()
        if not self._boundaries and len(self._stepped) == len(self.watches):
            self._boundary()  # nobody will tell us when the loop's body is complete

    def flush(self) -> None:
        """Bring everything that is on its way home."""
        for watch in self.watches.values():
            watch.transfer.flush()
        self._emit()

    # For steps that are run again: see `RerunHost`.

    @property
    def run_dir(self) -> Path | None:
        writer = self.recorder.writer
        return None if writer is None or writer.broken else writer.path

    def parameter_names(self) -> Mapping[int, str]:
        return self.inspection.parameter_index.by_identity()

    def stateful(self) -> Iterable[Any]:
        return self.recovery.holdings.others.values()

    def capture_state(self) -> Mapping[str, Any] | None:
        holdings = self.recovery.holdings
        return None if holdings.sharded else holdings.capture()

    def older_weights(self, step: int) -> Callable[[], AbstractContextManager[None]] | None:
        snapshot = self.recovery.snapshotter.peek(step)
        if snapshot is None or snapshot.step >= step:
            return None
        return partial(self.recovery.holdings.other_weights, snapshot.state)

    def record_event(self, step: int, kind: str, data: Mapping[str, Any]) -> None:
        self.recorder.event(step, kind, data)

    def inspect_batches(self, step: int, batches: Sequence[RecordedBatch]) -> None:
        self.inspection.batches(step, batches)

    def exclude_time(self, seconds: float) -> None:
        """So long the training stood still: its next step did not take that time."""
        if self._began:
            self._began += seconds
        for watch in self.watches.values():
            if watch.vote is not None:
                watch.vote.exclude_time(seconds)

    def state_replaced(self) -> None:
        """Weights, moments and buffers are others now, on purpose."""
        self.buffers.renew()

    def finish(self, *, well: bool) -> None:
        """The run is over; `well`: it was not stopped by an error."""
        self.flush()
        if well and not self._has_halted:
            self.recovery.check_at_end()
        self.recovery.close()

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        self.flush()
        return {
            "step": self._step,
            "watches": [watch.state_dict() for watch in self.watches.values()],
            "recorder": self.recorder.state_dict(),
            "quarantine": self.quarantine.state_dict(),
            "clip": self.clip.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step = state["step"]
        for watch, kept in zip(self.watches.values(), state["watches"], strict=True):
            watch.load_state_dict(kept)
        self.recorder.load_state_dict(state["recorder"])
        self.quarantine.load_state_dict(state["quarantine"])
        self.clip.load_state_dict(state["clip"])

    def rest(self) -> None:
        """Leave nothing switched on."""
        self.retention.close()
        self.leak_tracer.close()

    def raise_if_halted(self) -> None:
        """Stop the run if the policy said so."""
        if self.halted is not None:
            halted, self.halted = self.halted, None
            raise halted

    def _name_axes(self, assembly: StepRecordBuilder) -> None:
        self.recorder.extend_axis("param", self.inspection.parameter_index.names)
        if "buffer/norm" in assembly.columns:
            self.recorder.extend_axis("buffer", self.buffers.names)
        for axis, names in self.extra_signals.axes.items():
            self.recorder.extend_axis(axis, names)
        rates = assembly.columns.get("group/lr")
        if rates is not None and list(rates.values) == self._rates:
            del assembly.columns["group/lr"]  # as before: said once
        elif rates is not None:
            self._rates = list(rates.values)
            self.recorder.extend_axis("group", [f"group{at}" for at in range(len(self._rates))])

    def _emit(self) -> None:
        assembly, self._assembly = self._assembly, None
        if assembly is None:
            return
        values, columns = self.extra_signals.take()
        assembly.values.update(values)
        assembly.columns.update(columns)
        self._name_axes(assembly)
        self.recorder.step(assembly.step, assembly.values, assembly.columns, held=assembly.held)
        if not assembly.held:
            self._learn_the_usual(assembly)
        for verdict, note, optimizer in assembly.verdicts:
            self._act(verdict, note, optimizer)

    def _learn_the_usual(self, assembly: StepRecordBuilder) -> None:
        for name, value in assembly.values.items():
            if name == "loss" or name.startswith("loss/"):
                self._usual[name] = value
        column = assembly.columns.get("param/grad_norm")
        if column is not None:
            names = self.inspection.parameter_index.names
            self._usual.update({f"grad_norm/{names[at]}": norm for at, norm in column.items()})

    def usual(self) -> dict[str, float]:
        """Loss, its components and the norms of single gradients, when they were last good."""
        return self._usual

    def _act(self, verdict: StepVerdict, note: StepContext, optimizer: str) -> None:
        ladder = self.recorder.ladder(optimizer)
        if not verdict.bad:
            self.incidents.on_good_step(note)
            if not ladder.calm:
                self.recorder.judge(verdict, frozenset(), optimizer)
            return
        self._last_good = False
        with allow_device_sync():
            self._look_into(verdict, note, optimizer, again=ladder.in_a_row % RESCAN_INTERVAL == 0)

    def _look_into(
        self, verdict: StepVerdict, note: StepContext, optimizer: str, *, again: bool
    ) -> None:
        """A bad step: is it the state, which batch, and what is to be done?"""
        poisoned = verdict.poisoned
        if verdict.nonfinite and again:
            found = self.inspection.state(note.step)
            self.inspection.batches(note.step, note.batches)
            if self.ranks is None:
                poisoned = found
            elif found:  # what is to be done about it, all ranks decide at their next step
                self.ranks.poisoned = True
        whole = StepVerdict(verdict.step, verdict.nonfinite, verdict.spike, poisoned)
        action = self.judge(whole, self.recovery.rungs(whole), optimizer)
        if action.rung in (Rung.SKIP, Rung.BACK_OFF):  # the weights are still those that failed
            judged = [
                parameter
                for watch in self.watches.values()
                for group in watch.optimizer.param_groups
                for parameter in group["params"]
                if watch.suffix == optimizer
            ]
            self.incidents.on_bad_step(whole, note, judged)
        if not poisoned:  # bad weights make any batch look bad
            reason = "non-finite" if verdict.nonfinite else "spike"
            self.quarantine.take(note.step, note.batches, reason)

    def judge(self, verdict: StepVerdict, rungs: frozenset[Rung], optimizer: str = "") -> Action:
        """Let the policy decide, and do what it says."""
        again = self.recorder.ladder(optimizer).rolled_back
        action = self.recorder.judge(verdict, rungs, optimizer)
        if isinstance(action, BackOff):
            for watch in self.watches.values():
                if watch.suffix == optimizer:
                    watch.rate.back_off(action.factor)
        elif action.rung is Rung.ROLL_BACK:
            self.recovery.roll_back(action.step, older=again)
        elif action.rung is Rung.HALT:
            self._halt(action.step, action.reason, verdict.poisoned)
        return action

    def _halt(self, step: int, reason: str, poisoned: Sequence[str]) -> None:
        self._has_halted = True
        where = self.recorder.writer
        self.halted = TrainingHalted(
            f"training halted at step {step}: {reason}. "
            + (
                "They were so before this step: do not go on from these weights"
                if poisoned
                else "The weights are those of the last good step"
            )
            + (f"; next: headway diagnose {where.path}" if where and not where.broken else "")
        )

    def _boundary(self) -> None:
        """Between two steps, if one was made."""
        if self._body_open:
            self._body_open = False
            self.recovery.boundary(good=self._last_good)


def _poisoned(tally: RankTable) -> tuple[str, ...]:
    """As every rank says it; which tensors they are, the rank that holds them has recorded."""
    return tuple(f"a weight or moment of rank {rank}" for rank in tally.who(RankField.POISONED))
