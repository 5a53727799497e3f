"""The guard: two lines around a training loop.

    guard = headway.Guard(model, optimizer)
    for batch in guard(loader):
        loss = compute(model, batch)
        guard.backward(loss)          # or loss.backward()
        optimizer.step()
        optimizer.zero_grad()

`session.py` builds the parts behind it, `step_machine.py` holds the order of a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.config import Settings
from headway.core.findings import Finding, Findings
from headway.explain.explanation import Explanation
from headway.explain.failing_step import StepPass as OnePass
from headway.guard import guard_inputs
from headway.guard.brake.adaptive_clipper import require_limit
from headway.guard.brake.clip_rules import AdaptiveClip
from headway.guard.endings.exit_hooks import OpenRun
from headway.guard.fail_safe import FailSafe
from headway.guard.guard_inputs import Batch, GuardedLoader, attach_notifier, attach_trackers
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.recorder import Recorder
from headway.guard.recovery.data_position import DataPass, DataPosition
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.recovery.training_state import Stateful
from headway.guard.session import Session
from headway.guard.step_hooks import MissingSteps, StepHooks
from headway.output.notebook import guard_html, guard_state, keep_losses
from headway.output.notices import Notices, print_end
from headway.policy import Action, Policy
from headway.rerun import in_script
from headway.rerun.bad_step import BadStep
from headway.rerun.protocol import RerunMoment
from headway.rerun.recorded_batch import BatchOrigin, ObservedLoader
from headway.rerun.rerun_results import AppliedRemedy
from headway.torch_adapters.loaders.sample_indices import iterate_loader, make_index_recorder
from headway.torch_adapters.module_stack import unwrap_model
from headway.torch_adapters.process_groups import rank_group, sharded_tensors
from headway.torch_adapters.process_groups.local_gradients import LocalGradientMonitor


class Guard:
    """Measures and records every step, and skips a bad update before it is applied.

    A healthy run stays bit-identical. When the loss or a gradient is non-finite, or the
    gradient norm is far outside the run's own range, weights, moments, step counters and buffers
    stay unchanged.
    """

    _sampling_plan = SamplingPlan()
    _make_recorder = Recorder
    _make_missing_steps: Any = MissingSteps
    _print_end: Any = staticmethod(print_end)

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        scheduler: Any = None,
        scaler: GradScaler | None = None,
        run_dir: str | Path | None = None,
        max_norm: float | AdaptiveClip | None = None,
        policy: Policy | None = None,
        *,
        keep: Mapping[str, Stateful] | None = None,
        snapshots: Snapshots | None = None,
        settings: Settings | None = None,
        fuse: bool = False,
        group: Any = None,
        capture: str | None = None,
        trackers: Sequence[Any] = (),
        notify: Any = None,
    ) -> None:
        """Start guarding.

        `max_norm` clips as `clip_grad_norm_` does, without its extra pass, or by a limit that
        follows the run (`AdaGC()`, `ZClip()`); without it, gradients are never changed. `run_dir`
        is where the run is recorded; without it, the record is kept in memory only. `keep` names
        other objects with a `state_dict` that belong to the training state: an EMA, a sampler.
        `snapshots` sets when states are saved; see `Snapshots`. `fuse` switches Adam, AdamW, SGD
        and Adagrad on CUDA to their fused form, which the guard can judge without a host wait.
        `group` is the process group whose ranks decide together; by default the ranks that share
        the model's gradients (DistributedDataParallel, FSDP, DTensor). Every rank must then create
        its guard and step its optimizers in the same order. `capture` sets which data an incident
        stores on disk, as `Policy(capture=…)` does. `trackers` receive measurements and findings:
        names ("tensorboard", "wandb", "mlflow", "trackio", "logging") or their objects; none of
        them can slow down a step. `notify` is a URL, a command or a function that receives
        findings and the end of the run.
        """
        models = guard_inputs.as_list(model, nn.Module, "model")
        optimizers = guard_inputs.as_list(optimizer, Optimizer, "optimizer")
        require_limit(max_norm)
        self._notices = Notices()
        self._optimizers = optimizers
        self._closed = False
        self.scheduler = scheduler
        guard_inputs.claim_optimizers(self, optimizers, self._notices, fuse=fuse)
        settings = settings or Settings.load()
        policy = guard_inputs.choose_policy(policy, settings, capture)
        sharded_tensors.register_fsdp_units(models)
        self._ranks = rank_group.find_rank_group(models, optimizers, group, self._notices)
        recorder = self._make_recorder(
            settings=settings,
            policy=policy,
            run_dir=in_script.choose_run_dir(run_dir),
            facts=guard_inputs.describe_run(models, optimizers, max_norm),
            notices=self._notices,
            rank=rank_group.own_rank() if self._ranks is None else self._ranks.rank,
            ranks=self._ranks,
            sampling_plan=self._sampling_plan,
        )
        self._trackers = attach_trackers(trackers, recorder, self._ranks, self._notices)
        attach_notifier(notify, recorder, self._ranks, self._notices)
        self._losses = keep_losses(recorder.listeners)
        self._protected = FailSafe(self._notices, self._restore_training)
        self._origins = None
        if self._ranks is not None:
            self._origins = LocalGradientMonitor(models, self._protected, self._notices)
        self._session = Session(
            [unwrap_model(item) for item in models],
            optimizers,
            scaler=scaler,
            max_norm=max_norm,
            policy=policy,
            recorder=recorder,
            notices=self._notices,
            keep=guard_inputs.name_stateful(keep, scheduler=scheduler, scaler=scaler),
            snapshots=snapshots or Snapshots(),
            ranks=self._ranks,
            origins=self._origins,
            sampling_plan=self._sampling_plan,
        )
        self._machine = self._session.machine
        self._rerun = self._session.rerun
        self._hooks = StepHooks(
            optimizers,
            machine=self._machine,
            outcomes=self._session.outcomes,
            recovery=self._session.recovery,
            rerun=self._rerun,
            protected=self._protected,
            ranks=self._ranks,
            notices=self._notices,
            close=self.close,
        )
        self._missing = self._make_missing_steps(
            optimizers, recorder, self._session.counter, self._protected
        )
        self._ending = OpenRun(recorder, self._session.failure_moment, self._session.counter)
        # Dropped, or still open at exit: its record ends as that of a run that finished.
        self._at_exit = weakref.finalize(self, self._ending.finish)
        weakref.finalize(self, self._trackers.close)

    def __call__(self, loader: Iterable[Batch]) -> GuardedLoader[Batch]:
        """Wrap a loader: the guard records each batch and the time it took to load."""
        if self._closed:
            self._say_closed("guard(loader)")
        return GuardedLoader(self, loader)

    def backward(
        self, loss: Tensor, *, retain_graph: bool | None = None, **components: Any
    ) -> None:
        """Call `loss.backward()`, and record the named components of the loss.

        With a GradScaler in use the loss is scaled first, unless it is scaled already.
        """
        guard_inputs.require_scalar(loss)
        listener = self._rerun.sandbox or self._machine
        if self._closed:
            self._say_closed("guard.backward()")
        else:
            named = guard_inputs.scalar_components(components, self._notices)
            self._protected(listener.components, named)
        scaler = listener.scaler_for(loss)
        target = loss if scaler is None else scaler.scale(loss)
        target.backward(retain_graph=retain_graph)

    def open_pass(self, one: DataPass, number: int) -> ObservedLoader:
        """Start a pass over a loader; each batch has its origin, and bad ones may be avoided."""
        return self._session.open_pass(one, number, self._iterate, self._protected)

    def _iterate(self, loader: Any) -> Iterator[Any]:
        tape = None if self._closed else self._protected(make_index_recorder, loader)
        return iterate_loader(loader, tape)

    def saw_batch(
        self,
        batch: Any,
        waited: float | None = None,
        origin: BatchOrigin | None = None,
        run: Callable[[Any], Any] | None = None,
    ) -> None:
        """The loop has a new batch; for loops that do not iterate over `guard(loader)`.

        `waited`: seconds that loading it took, if known. `run(batch)` runs forward and backward
        over it, in case the step is bad and is run again.
        """
        if self._closed or self.replaying:
            return
        if run is not None and in_script.is_requested():
            in_script.rerun_step(self, batch, lambda batches: run)
        self._protected(self._machine.batch_handed, batch, waited, origin, run)

    def count_from(self, step: int) -> None:
        """Set the number of the next step, for a run that another tool has resumed."""
        self._machine.count_from(step)

    def step_done(self) -> None:
        """The loop body is complete, scheduler, scaler and EMA included.

        `guard(loader)` calls it; adapters of frameworks call it themselves.
        """
        if not self._closed and not self.replaying:
            self._protected(self._machine.batch_wanted)
            if self._rerun.pending:
                self._rerun.rerun(RerunMoment.STEP_COMPLETE)
            self._hooks.stop_if_asked()

    @property
    def replaying(self) -> bool:
        """Whether the current step is a re-run of a bad one. Check it before you log or count.

        A re-run updates nothing.
        """
        return self._rerun.sandbox is not None

    @property
    def explanations(self) -> list[Explanation]:
        """Explanations of the bad steps that were run again."""
        self._flush_readings()
        return list(self._rerun.rerun_results.found)

    @property
    def cures(self) -> list[AppliedRemedy]:
        """Remedies that `Policy(cure="apply")` has applied; each can be undone."""
        return list(self._rerun.rerun_results.cures)

    def rerun_in_loop(self, frame: FrameType | None) -> Iterator[Any]:
        """Called when the loop of this frame requests a batch: run a bad step again first.

        Yields batches for the loop to take, where its body cannot be called.
        """
        if not self._closed:
            yield from self._rerun.rerun_in_loop(frame)

    @property
    def rerun_pending(self) -> bool:
        """Whether a bad step waits to be run again."""
        return self._rerun.pending and not self._closed and not self._protected.tripped

    def rerun_pending_at_end(self) -> bool:
        """The same when no step follows: waits for the readings still on the device."""
        self._flush_readings()
        return self.rerun_pending

    def resume(self, run_dir: str | Path | None = None) -> int:
        """Restore the newest complete snapshot; returns the steps taken before it, 0 without one.

        Restores everything that the guard tracks, random numbers included. Run the loops over
        `guard(loader)` from the start: epochs that were complete yield no batches (`guard.epochs`
        omits them), and the interrupted one continues with the next batch.
        """
        if in_script.is_requested():  # the state will be that of an incident
            return 0
        find = partial(self._session.recorder.folder_with_snapshots, run_dir)
        return self._session.recovery.resume(find)

    def epochs(self, count: int) -> Iterator[int]:
        """`range(count)` without the epochs that were complete before a resume."""
        return self.data_position.epochs(count)

    @property
    def data_position(self) -> DataPosition:
        """The position of the training in its data."""
        return self._session.recovery.data_position

    @property
    def step(self) -> int:
        """Number of steps so far, skipped ones included."""
        return self._machine.counter.made

    @property
    def rate_factor(self) -> float:
        """The factor on the learning rate of the next step; 1 unless backed off."""
        return min(step.rate.value for step in self._machine.optimizer_steps.values())

    @property
    def snapshot_bytes(self) -> int:
        """Size of one snapshot in memory; 0 before the first."""
        return self._session.recovery.snapshotter.size

    @property
    def findings(self) -> list[Finding]:
        """Findings so far, in order. Waits for steps still on the device."""
        self._flush_readings()
        return Findings(self._session.recorder.engine.findings)

    @property
    def actions(self) -> list[Action]:
        """Actions on bad steps, in order."""
        self._flush_readings()
        return list(self._session.recorder.actions)

    @property
    def run_dir(self) -> Path | None:
        """The folder of the run's record; None without one, or after a write error."""
        return self._session.run_dir

    # For the replay of a captured incident: see `rerun/in_script.py`.

    def restore_captured(self, state: Mapping[str, Any]) -> None:
        """Load the captured state. Raises UsageError where it does not fit."""
        self._session.recovery.restore_captured(state)

    def redeliver_captured(self, incident: BadStep, one: OnePass) -> Generator[Any, None, None]:
        """The captured batches for the loop, while nothing is updated."""
        return self._rerun.run_captured(incident, one)

    def explain_captured_step(self, incident: BadStep, frame: FrameType | None) -> Iterator[Any]:
        """Find out why the captured step failed."""
        return self._rerun.explain_captured(incident, frame)

    def close(self) -> None:
        """Remove all hooks and patches, and finish the record. Closing twice does nothing.

        On a terminal, one line says how many steps were guarded and what was found.
        """
        self._close(well=True)

    def _close(self, *, well: bool, last: bool = True) -> None:
        """`last`: no other guard continues the record."""
        if self._closed:
            return
        self._rerun.close()
        self._missing.close(well=well)
        self._protected(partial(self._session.finish, well=well, last=last))
        self._closed = True
        if self._origins is not None:
            self._origins.close()
        self._session.close()
        self._hooks.remove()
        guard_inputs.release_optimizers(self._optimizers)
        self._ending.close()
        if last:
            self._at_exit.detach()
            # Done by a guard that has failed, too: otherwise the process seems to have vanished.
            recorder = self._session.recorder
            self._protected.spare("the end of the record", recorder.close, self._session.steps)
        self._trackers.close()
        if well and last and rank_group.own_rank() == 0 and not in_script.is_requested():
            self._print_end(self.step, self.findings, self.run_dir)

    def _repr_html_(self) -> str:
        """For Jupyter. Waits for steps still on the device, as `findings` does."""
        return guard_html(self, closed=self._closed, losses=self._losses)

    def __repr__(self) -> str:
        return f"<{guard_state(self, closed=self._closed)}>"

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed:
            self._protected.spare("the record of an exception", self._ending.record, error)
        self._close(well=error is None)

    def _flush_readings(self) -> None:
        # With other ranks nothing is collected early: all must learn it at the same step.
        if not self._closed and self._ranks is None:
            self._protected(self._machine.flush)

    def _restore_training(self) -> None:
        for step in self._machine.optimizer_steps.values():
            step.let_go()
        self._session.rest()

    def _say_closed(self, what: str) -> None:
        text = f"{what} after guard.close(): training continues without a guard"
        self._notices.once("closed", text)
