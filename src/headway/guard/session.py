"""Builds the parts behind a guard and connects them.

Only `Guard` holds a session. The parts receive what they need, never the session; re-runs see it
as a `RerunHost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway import registry
from headway.core.bound import Bound
from headway.explain.incident_file.contents import running_script
from headway.guard.brake.adaptive_clipper import AdaptiveClippers
from headway.guard.brake.clip_rules import AdaptiveClip
from headway.guard.endings.device_assert import HostInputs
from headway.guard.endings.failure import FailureMoment
from headway.guard.endings.hang_watch import watch_session
from headway.guard.endings.save_failure import SaveWatch
from headway.guard.measure.parameter_index import StateInspector
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.measure.step_measure import HostReadings
from headway.guard.measure.system_sampler import SystemSampler
from headway.guard.memory.leaks import LeakTracer
from headway.guard.memory.retained_graphs import GraphRetention
from headway.guard.memory.split_forward import SplitForward
from headway.guard.optimizer_step import OptimizerStep, StepParts
from headway.guard.ranks.rank_table import COLUMNS, NONFINITE
from headway.guard.recorder import Recorder
from headway.guard.recovery.bad_samples import BadSamples
from headway.guard.recovery.data_position import DataPass
from headway.guard.recovery.quarantine import Quarantine
from headway.guard.recovery.recovery_manager import RecoveryManager
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.recovery.training_state import HOOKS, TrainingState
from headway.guard.step_machine import StepMachine
from headway.guard.step_outcomes import StepCounter, StepOutcomes
from headway.output.notices import Notices
from headway.policy import Policy
from headway.rerun import in_script
from headway.rerun.controller import RerunController
from headway.rerun.protocol import ProtectedCalls
from headway.rerun.recorded_batch import ObservedLoader, RecordedBatch, RescueBatch
from headway.rerun.rerun_group import RerunGroup
from headway.torch_adapters.device_failure.lost_device import device_is_lost
from headway.torch_adapters.optimizer_adapter import LossScaling
from headway.torch_adapters.process_groups import rank_group
from headway.torch_adapters.process_groups.hook_states import HookStates
from headway.torch_adapters.process_groups.local_gradients import LocalGradientMonitor
from headway.torch_adapters.process_groups.rank_agreement import Agreement, SingleProcess
from headway.torch_adapters.process_groups.rank_group import RankGroup
from headway.torch_adapters.saved_state import BufferBackup


class Session:
    """The parts of one guarded training."""

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
        ranks: RankGroup | None = None,
        origins: LocalGradientMonitor | None = None,
        sampling_plan: SamplingPlan | None = None,
    ) -> None:
        """`ranks` decide together about each step; None in a single process."""
        plan = sampling_plan or SamplingPlan()
        rule = max_norm if isinstance(max_norm, AdaptiveClip) else None
        fixed_norm = None if isinstance(max_norm, AdaptiveClip) else max_norm
        self.models = models
        self.optimizers = optimizers
        self._script = running_script() if torch.cuda.is_initialized() else None
        self.agreement: SingleProcess = (
            Agreement(ranks) if ranks else SingleProcess(rank_group.own_rank())
        )
        self.policy = policy
        self.ranks = ranks
        self.recorder = recorder
        self.clip = AdaptiveClippers(rule, notices)
        self.quarantine = Quarantine(recorder.event, notices, avoid=policy.avoid_bad_batches)
        hooks = HookStates(models)
        self.buffers = BufferBackup(models, hooks)
        self.retention = GraphRetention(recorder.event, plan.graphs_every)
        self.leak_tracer = LeakTracer(recorder.event)
        self.system = _open_system_sampler(recorder, optimizers)
        self.inspection = StateInspector(models, optimizers, recorder, notices)
        self.scaling = LossScaling(scaler)
        self.counter = StepCounter()
        self.saves = SaveWatch(recorder, self.failure_moment)
        self.outcomes = StepOutcomes(
            policy=policy,
            recorder=recorder,
            inspection=self.inspection,
            quarantine=self.quarantine,
            buffers=self.buffers,
            ranks=ranks,
            optimizers=len(optimizers),
        )
        self.machine = StepMachine(
            models,
            counter=self.counter,
            outcomes=self.outcomes,
            recorder=recorder,
            inspection=self.inspection,
            buffers=self.buffers,
            scaling=self.scaling,
            retention=self.retention,
            host=HostReadings(self.retention, self.leak_tracer.sampled, self.system),
            ranks=ranks,
            origins=origins,
            notices=notices,
        )
        parts = StepParts(
            order=self.machine,
            deliver=self.outcomes.deliver,
            foresee=self._foresee,
            policy=policy,
            plan=plan,
            max_norm=fixed_norm,
            bound=registry.get("HD207").bound or Bound("grad_norm"),
            alone=len(optimizers) == 1,
            buffers=self.buffers,
            scaling=self.scaling,
            notices=notices,
            ranks=ranks,
            origins=origins,
        )
        for number, optimizer in enumerate(optimizers):
            clipper = self.clip.attach(optimizer)
            step = OptimizerStep(optimizer, number, parts, clipper)
            self.machine.optimizer_steps[id(optimizer)] = step
        writer = recorder.writer
        self.recovery = RecoveryManager(
            TrainingState(models, optimizers, {**keep, **({HOOKS: hooks} if hooks else {})}),
            snapshots,
            run_dir=recorder.folder,
            notices=notices,
            agreement=self.agreement,
            counter=self.counter,
            recorder=recorder,
            inspection=self.inspection,
            buffers=self.buffers,
            ranks=ranks,
            judge=self.outcomes.judge,
            guard_state=self,
        )
        self.rerun_group = (
            None
            if ranks is None or origins is None or not isinstance(self.agreement, Agreement)
            else RerunGroup(ranks, origins, models, self.agreement)
        )
        """The ranks that run a bad step again together."""
        self.rerun = RerunController(self, policy, notices)
        self.outcomes.connect(self.recovery, self.rerun, self.optimizer_steps.values())
        self.machine.connect(self.recovery, self.rerun)
        self.inspection.on_bad_buffer = self.rerun.buffers_are_bad
        self.split_forward = (
            None
            if policy.on_oom == "stop"
            else SplitForward(
                models,
                policy.on_oom,
                report=recorder.event,
                step=lambda: self.counter.made,
                passive=lambda: self.rerun.sandbox is not None,
                skip_update=self._skip_update,
                restore_buffers=self.buffers.restore,
                notices=notices,
            )
        )
        self.bad_samples = (
            BadSamples(recorder.event, lambda: self.counter.made, notices, ranks=ranks is not None)
            if policy.on_bad_sample == "skip"
            else None
        )
        self.recovery.data_position.skips_errors = self.bad_samples is not None
        if ranks is not None:
            recorder.extend_axis("rank", [str(rank) for rank in range(ranks.size)])
            recorder.declare([*COLUMNS, NONFINITE])
        self.inspection.at_start()
        if policy.avoid_bad_batches and writer is not None:
            self.quarantine.read_back(writer.path / "events.jsonl")
        self.watchdog = watch_session(self, notices)

    @property
    def optimizer_steps(self) -> Mapping[int, OptimizerStep]:
        """The guarded optimizers, by identity."""
        return self.machine.optimizer_steps

    @property
    def step(self) -> int:
        """The number of the current step, counted from 0."""
        return self.counter.current

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self.counter.made

    def failure_moment(self) -> FailureMoment:
        """What the training is doing, for an exception that ends it."""
        latest = self.machine.latest
        inputs = HostInputs(
            self._script, tuple(self.machine.recent), self.recovery.snapshotter.newest_weights
        )
        return FailureMoment(
            steps=self.counter.made,
            in_body=self.machine.in_body,
            batch=[] if latest is None else self.machine.batch_history.describe(latest.batch),
            saves=self.saves,
            asked=self.recovery.waiting_signal,
            host_inputs=inputs if torch.cuda.is_initialized() else None,
        )

    def avoids(self, batch: RecordedBatch) -> bool:
        """Whether a batch of the loader is skipped because its update was skipped before."""
        return self.quarantine.avoids(self.counter.made, batch)

    def rescue_for(self, loader: Any) -> RescueBatch | None:
        """What leaves out the bad samples of a loader, if the policy says so."""
        bad = self.bad_samples
        return None if bad is None else partial(bad.rescue, loader)

    def open_pass(
        self,
        one: DataPass,
        number: int,
        iterate: Callable[[Any], Iterator[Any]],
        protected: ProtectedCalls,
    ) -> ObservedLoader:
        """A pass over a loader that `iterate` reads; bad batches and samples may be left out."""
        avoid = partial(protected, self.avoids) if self.policy.avoid_bad_batches else None
        return ObservedLoader(
            self.recovery.data_position.open(one, iterate),
            number,
            avoid,
            given=one.given,
            rescue=self.rescue_for(one.loader),
            loader=one.loader,
        )

    def finish(self, *, well: bool, last: bool = True) -> None:
        """The run is over; `well`: no error stopped it. Not `last`: another guard takes over, at a
        backward pass, whose weights must stay as they are."""
        if device_is_lost():
            return
        self.machine.flush()
        if not last:
            self.watchdog.continued()
        if well and last and not self.outcomes.halted:
            self.recovery.check_at_end()
        self.recovery.close(well=well)

    def rest(self) -> None:
        """Switch off what is still on."""
        self.watchdog.stop()
        self.saves.close()
        self.retention.close()
        self.leak_tracer.close()
        self.buffers.forget_replays()
        if self.split_forward is not None:
            self.split_forward.close()

    def close(self) -> None:
        """The guard is over, and no rank waits for this one any more."""
        self.rest()
        self.agreement.close()

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        self.machine.flush()
        return {
            "step": self.counter.made - 1,
            "watches": [step.state_dict() for step in self.optimizer_steps.values()],
            "recorder": self.recorder.state_dict(),
            "quarantine": self.quarantine.state_dict(),
            "clip": self.clip.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.machine.count_from(state["step"] + 1)
        for step, saved in zip(self.optimizer_steps.values(), state["watches"], strict=True):
            step.load_state_dict(saved)
        self.recorder.load_state_dict(state["recorder"])
        self.quarantine.load_state_dict(state["quarantine"])
        self.clip.load_state_dict(state["clip"])

    # For steps that are run again: see `RerunHost`.

    @property
    def latest(self) -> RecordedBatch | None:
        return self.machine.latest

    @property
    def run_dir(self) -> Path | None:
        writer = self.recorder.writer
        return None if writer is None or writer.broken else writer.path

    def usual(self) -> dict[str, float]:
        return self.outcomes.usual()

    def parameter_names(self) -> Mapping[int, str]:
        return self.inspection.parameter_index.by_identity()

    def stateful(self) -> Iterable[Any]:
        return self.recovery.training.others.values()

    def capture_state(self) -> Mapping[str, Any] | None:
        training = self.recovery.training
        return None if training.sharded else training.capture()

    def older_weights(self, step: int) -> Callable[[], AbstractContextManager[None]] | None:
        snapshot = self.recovery.snapshotter.peek(step)
        if snapshot is None or snapshot.step >= step:
            return None
        return partial(self.recovery.training.other_weights, snapshot.state)

    def record_event(self, step: int, kind: str, data: Mapping[str, Any]) -> None:
        self.recorder.event(step, kind, data)

    def inspect_batches(self, step: int, batches: Sequence[RecordedBatch]) -> None:
        self.inspection.batches(step, batches)

    def exclude_time(self, seconds: float) -> None:
        self.machine.exclude_time(seconds)

    def _skip_update(self) -> None:
        for step in self.optimizer_steps.values():
            step.skip_next = True

    def _foresee(self, context: Any) -> None:
        self.rerun.expect_rerun(context)


def _open_system_sampler(
    recorder: Recorder, optimizers: Sequence[Optimizer]
) -> SystemSampler | None:
    """Reads the machine for a run that is written to disk; None for the replay of an incident."""
    writer = recorder.writer
    if writer is None or writer.broken or in_script.is_requested():
        return None
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    devices = [parameter.device for group in groups for parameter in group["params"]]
    sampler = SystemSampler(next(iter(devices), None))
    recorder.declare(sampler.names)
    return sampler
