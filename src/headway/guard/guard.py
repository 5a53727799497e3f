"""The guard: two lines around a training loop.

    guard = headway.Guard(model, optimizer)
    for batch in guard(loader):
        loss = compute(model, batch)
        guard.backward(loss)          # or loss.backward()
        optimizer.step()
        optimizer.zero_grad()

Everything else is in `session.py` and behind it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.config import Settings
from headway.core.findings import Finding
from headway.errors import UsageError
from headway.explain.explanation import Explanation
from headway.explain.failing_step import StepPass as OnePass
from headway.guard import guard_inputs
from headway.guard import recorder as tracking
from headway.guard.brake.adaptive_clipper import require_limit
from headway.guard.brake.clip_rules import AdaptiveClip
from headway.guard.fail_safe import FailedRank, FailSafe
from headway.guard.guard_inputs import GuardedLoader
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.recorder import Recorder
from headway.guard.recovery.data_position import DataPass, DataPosition
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.recovery.training_state import Stateful
from headway.guard.session import Session
from headway.guard.step_hooks import StepHooks
from headway.output.notebook import guard_html
from headway.output.notices import Notices
from headway.policy import Action, Policy
from headway.rerun import in_script
from headway.rerun.bad_step import AppliedRemedy, BadStep
from headway.rerun.protocol import RerunMoment
from headway.rerun.recorded_batch import BatchOrigin, ObservedLoader
from headway.torch_adapters import (
    dataloader,
    patching,
    rank_group,
    sharded_tensors,
)
from headway.torch_adapters.local_gradients import LocalGradientMonitor
from headway.torch_adapters.module_stack import unwrap_model

Batch = TypeVar("Batch")


class Guard:
    """Measures every step, holds a bad update back in the same step, and writes everything down.

    A healthy run is left bit for bit as it is. When the loss or a gradient is not finite, or the
    gradient norm leaps far out of the run's own spread, weights, moments, step counters and buffers
    stay as they were.
    """

    _rhythm = SamplingPlan()
    _make_recorder = Recorder

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
    ) -> None:
        """Start watching.

        `max_norm` clips as `clip_grad_norm_` would, without its extra pass, or by a limit that
        follows the run (`AdaGC()`, `ZClip()`); unset, gradients are never changed. `run_dir` is
        where the run is written down; unset, it is kept in memory only. `keep` names whatever else
        belongs to the training's state and has a `state_dict`: an EMA, a sampler. `snapshots` says
        when last-good states are taken; see `Snapshots`. `fuse` switches Adam, AdamW, SGD and
        Adagrad on CUDA to their fused form, whose guard needs no host wait. `group` is the process
        group whose ranks decide together; unset, those that share the model's gradients
        (DistributedDataParallel, FSDP, DTensor), if any. Then every rank must make its guard and
        step its optimizers alike. `capture` says what of the data an incident keeps on disk, as
        `Policy(capture=…)` does. `trackers` are shown what is measured and found: names
        ("tensorboard", "wandb", "mlflow", "trackio", "logging") or objects of theirs; none of them
        can slow a step.
        """
        models = guard_inputs.as_list(model, nn.Module, "model")
        optimizers = guard_inputs.as_list(optimizer, Optimizer, "optimizer")
        require_limit(max_norm)
        self._notices = Notices()
        self._optimizers = optimizers
        self._closed = False
        self.scheduler = scheduler
        guard_inputs.claim_optimizers(self, optimizers, self._notices)
        if fuse:
            guard_inputs.fuse_optimizers(optimizers, self._notices)
        settings = settings or Settings.load()
        policy = policy or Policy.from_mapping(settings.policy)
        if capture is not None:
            policy = replace(policy, capture=capture)
        parameters = [p for item in optimizers for g in item.param_groups for p in g["params"]]
        sharded_tensors.register_fsdp_units(models)
        self._ranks = rank_group.find_rank_group(models, parameters, group, self._notices)
        recorder = self._make_recorder(
            settings=settings,
            policy=policy,
            run_dir=in_script.choose_run_dir(run_dir),
            facts=guard_inputs.describe_run(models, optimizers, max_norm),
            notices=self._notices,
            rank=rank_group.own_rank() if self._ranks is None else self._ranks.rank,
            ranks=self._ranks,
            rhythm=self._rhythm,
        )
        self._trackers = tracking.attach_trackers(trackers, recorder, self._ranks, self._notices)
        self._shield = FailSafe(self._notices, self._let_go)
        self._origins = (
            None
            if self._ranks is None
            else LocalGradientMonitor(models, self._shield, self._notices)
        )
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
            rhythm=self._rhythm,
        )
        self._machine = self._session.machine
        failed_rank = FailedRank(self._machine)
        self._observer = self._shield.around(self._machine, failed_rank)
        self._rerun = self._session.incidents
        self._rerun.connect(self._shield, self._observer)
        self._hooks = StepHooks(
            optimizers,
            machine=self._machine,
            rerun=self._rerun,
            protected=self._shield,
            failed_rank=failed_rank,
            ranks=self._ranks,
            stop_if_asked=self._stop_if_asked,
        )
        patching.add_listener(self._observer)
        self._at_exit = weakref.finalize(self, recorder.flush)
        weakref.finalize(self, self._trackers.close)

    def __call__(self, loader: Iterable[Batch]) -> GuardedLoader[Batch]:
        """The loader, watched: the guard knows each batch and how long it took to come."""
        if self._closed:
            self._say_closed("guard(loader)")
        return GuardedLoader(self, loader)

    def backward(
        self, loss: Tensor, *, retain_graph: bool | None = None, **components: Any
    ) -> None:
        """`loss.backward()`, with the loss's named components for the record.

        With a GradScaler in use the loss is scaled first, unless you did so yourself.
        """
        guard_inputs.require_scalar(loss)
        listener = self._rerun.sandbox or self._machine
        if self._closed:
            self._say_closed("guard.backward()")
        else:
            named = guard_inputs.scalar_components(components, self._notices)
            self._shield(listener.components, named)
        scaler = listener.scaler_for(loss)
        target = loss if scaler is None else scaler.scale(loss)
        target.backward(retain_graph=retain_graph)

    def draw_from(self, one: DataPass, number: int) -> ObservedLoader:
        """A pass over a loader, each batch with its origin; bad ones left out if so wished."""
        tape = None if self._closed else self._shield(dataloader.make_index_recorder, one.loader)
        source = self.journey.open(one, partial(dataloader.iterate_loader, tape=tape))
        avoiding = self._session.policy.avoid_bad_batches
        avoid = partial(self._shield, self._session.avoids) if avoiding else None
        return ObservedLoader(source, number, avoid, given=one.given)

    def saw_batch(
        self,
        batch: Any,
        waited: float | None = None,
        origin: BatchOrigin | None = None,
        run: Callable[[Any], Any] | None = None,
    ) -> None:
        """A batch is about to be trained on; for loops that do not go through `guard(loader)`.

        `waited`: seconds until the loader had it, where somebody knows. `run(batch)`: how forward
        and backward are run over it, should the step go bad and be looked into.
        """
        if self._closed or self.replaying:
            return
        if run is not None and in_script.is_requested():
            in_script.rerun_step(self, batch, lambda batches: run)
        self._shield(self._machine.batch_handed, batch, waited, origin, run)

    def count_from(self, step: int) -> None:
        """The next step is called this: for a run that another tool has resumed."""
        self._machine.count_from(step)

    def step_done(self) -> None:
        """The loop's body is complete; `guard(loader)` says so by itself, adapters call it.

        The moment for everything that must see a whole step: scheduler, scaler and EMA included.
        """
        if not self._closed and not self.replaying:
            self._shield(self._machine.batch_wanted)
            if self._rerun.pending:
                self._rerun.rerun(RerunMoment.STEP_COMPLETE)
            self._stop_if_asked()

    @property
    def replaying(self) -> bool:
        """Whether the step that runs now is a repetition, to find out why it went bad.

        Nothing is updated in it; a loop may look here before it logs or counts.
        """
        return self._rerun.sandbox is not None

    @property
    def explanations(self) -> list[Explanation]:
        """Why steps went bad, for those that were run again."""
        self._flush_readings()
        return list(self._rerun.rerun_results.found)

    @property
    def cures(self) -> list[AppliedRemedy]:
        """What `Policy(cure="apply")` has put in force; each can be undone."""
        return list(self._rerun.rerun_results.cures)

    def run_again(self, frame: FrameType | None) -> Iterator[Any]:
        """The loop that this frame is in asks for a batch: run a bad step again first.

        Yields batches for the loop to take, where its body cannot be called.
        """
        if not self._closed:
            yield from self._rerun.rerun_in_loop(frame)

    @property
    def step_waits(self) -> bool:
        """Whether a bad step is still to be looked into."""
        return self._rerun.pending and not self._closed and not self._shield.tripped

    def last_step_waits(self) -> bool:
        """The same when no step will follow: what is on its way is brought home first."""
        self._flush_readings()
        return self.step_waits

    def resume(self, run_dir: str | Path | None = None) -> int:
        """Take up the newest whole snapshot; the steps made before it, 0 if there is none.

        Everything the guard was given goes back to that state, random numbers included. Loops over
        `guard(loader)` then run again from the start: epochs that were complete give no batches
        (`guard.epochs` leaves them out altogether) and the one that was interrupted goes on with
        the very next batch.
        """
        if in_script.is_requested():  # the state will be that of an incident
            return 0
        folder = Path(run_dir) if run_dir is not None else self.run_dir
        if folder is None:
            raise UsageError("guard.resume() needs a run directory: give it one, or give Guard one")
        return self._session.recovery.resume(folder)

    def epochs(self, count: int) -> Iterator[int]:
        """`range(count)`, but after a resume without the epochs that were complete."""
        return self.journey.epochs(count)

    @property
    def journey(self) -> DataPosition:
        """Where the training is in its data."""
        return self._session.recovery.journey

    @property
    def step(self) -> int:
        """How many steps were made so far, held ones included."""
        return self._session.steps

    @property
    def rate_factor(self) -> float:
        """What the learning rate is multiplied by at the coming step; 1 unless backed off."""
        return min(watch.rate.value for watch in self._machine.optimizer_steps.values())

    @property
    def snapshot_bytes(self) -> int:
        """What one snapshot in memory takes; 0 before the first."""
        return self._session.recovery.snapshotter.size

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, in order. Waits for steps still on the device."""
        self._flush_readings()
        return self._session.recorder.engine.findings

    @property
    def actions(self) -> list[Action]:
        """What the guard did about bad steps, in order."""
        self._flush_readings()
        return list(self._session.recorder.actions)

    @property
    def run_dir(self) -> Path | None:
        """Where the run is written down; None when it is not, or no longer can be."""
        writer = self._session.recorder.writer
        return None if writer is None or writer.broken else writer.path

    # For a rehearsal of an incident, see `rehearsal.py`.

    def put_in_place(self, state: Mapping[str, Any]) -> None:
        """The state an incident was captured in. Raises UsageError where it does not fit."""
        self._session.recovery.put_in_place(state)

    def give_again(self, incident: BadStep, one: OnePass) -> Generator[Any, None, None]:
        """The batches of a captured incident for the loop, while nothing is updated."""
        self._session.buffers.renew()
        return self._rerun.run_captured(incident, one)

    def look_into_again(self, incident: BadStep, frame: FrameType | None) -> Iterator[Any]:
        """Find out why a captured incident went bad, as of a step of one's own."""
        return self._rerun.explain_captured(incident, frame)

    def close(self) -> None:
        """Stop watching: torch and the optimizers are as before. Closing twice does nothing."""
        self._close(well=True)

    def _close(self, *, well: bool, last: bool = True) -> None:
        """`last`: nobody goes on writing the record."""
        if self._closed:
            return
        self._rerun.close()
        self._shield(partial(self._session.finish, well=well))
        self._closed = True
        if self._origins is not None:
            self._origins.close()
        self._session.rest()
        patching.remove_listener(self._observer)
        self._hooks.remove()
        guard_inputs.release_optimizers(self._optimizers)
        if last:
            self._shield(self._session.recorder.close, self._session.steps)
        self._trackers.close()

    def _repr_html_(self) -> str:
        """As Jupyter shows it. Waits for steps still on the device, as `findings` does."""
        return guard_html(
            steps=self.step,
            findings=self.findings,
            actions=self.actions,
            run_dir=self.run_dir,
            closed=self._closed,
        )

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed:
            what = {"error": f"{type(error).__name__}: {error}"}
            self._shield(self._session.recorder.event, self._session.step, "exception", what)
        self._close(well=error is None)

    def _stop_if_asked(self) -> None:
        """End the training where the policy halts it, or a signal asks to leave."""
        self._session.outcomes.raise_if_halted()
        recovery = self._session.recovery
        preemption = recovery.preemption
        if self._ranks is None and (preemption is None or preemption.asked is None):
            return
        number = recovery.asked_to_leave()
        if number is None or self._machine.in_body:
            return
        theirs = None if preemption is None else preemption.pass_on()
        self._shield(recovery.leave, number)
        self.close()
        if theirs is None:
            raise SystemExit(128 + number)
        theirs(number, None)

    def _flush_readings(self) -> None:
        # With other ranks, what is due later stays away: they must all learn it at the same step.
        if not self._closed and self._ranks is None:
            self._shield(self._machine.flush)

    def _let_go(self) -> None:
        for watch in self._machine.optimizer_steps.values():
            watch.let_go()
        self._session.rest()

    def _say_closed(self, what: str) -> None:
        self._notices.once("closed", f"{what} after guard.close(): training goes on unwatched")
