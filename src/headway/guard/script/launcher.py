"""Guards an unmodified script: finds its models and optimizers at the first backward.

Global optimizer hooks and a patched backward show when something trains. At the first backward pass
the launcher finds the models and optimizers and creates a guard for them. When a new optimizer
appears, a new guard continues the count and the record of the old one.
"""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from headway.checks.setup.hd003_nothing_guarded import UNGUARDED
from headway.config import Settings
from headway.explain.incident_file.contents import running_script
from headway.guard.endings.batch_history import EarlyBatches
from headway.guard.endings.failure import record_failure, worker_signals_ignored
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.recorder import Recorder
from headway.guard.recovery.snapshots import Snapshots
from headway.guard.script.backward_passes import BackwardPasses
from headway.guard.script.script_guard import ScaledLoss, ScriptGuard
from headway.guard.script.step_limits import StepLimits, children_seconds
from headway.guard.script.training_search import TrainingSearch
from headway.output.notices import Notices, logger
from headway.policy import Policy
from headway.rerun.recorded_batch import BatchOrigin
from headway.rerun.step_tracer import StepTracer
from headway.torch_adapters import live_objects, patching
from headway.torch_adapters.frames import current_frame, is_user_frame
from headway.torch_adapters.loaders.observed_loaders import observe_loaders
from headway.torch_adapters.loaders.sample_indices import DrawnSamples
from headway.torch_adapters.optimizer_adapter import MAX_SCALED_LOSSES
from headway.torch_adapters.patching import call_after
from headway.torch_adapters.step_skipping import count_running_steps

if TYPE_CHECKING:
    from headway.guard.script.guarded_run import NoStepReason

_active: list[ScriptLauncher] = []
"""Launchers whose scripts run now; the newest is last."""


def active_launcher() -> ScriptLauncher | None:
    """The launcher of the script that runs now; None if headway has not started it."""
    return _active[-1] if _active else None


class ScriptLauncher(patching.TorchListener):
    """A context manager that guards the training inside it."""

    def __init__(
        self,
        *,
        settings: Settings,
        policy: Policy,
        run_dir: str | Path | None = None,
        max_norm: float | None = None,
        sampling_plan: SamplingPlan | None = None,
        snapshots: Snapshots | None = None,
        limits: StepLimits | None = None,
        trained: tuple[nn.Module, Optimizer] | None = None,
    ) -> None:
        """`trained`: the model and its optimizer, if they are known."""
        self.settings = settings
        self.policy = policy
        self.recorder: Recorder | None = None
        self.guard: ScriptGuard | None = None
        self.steps: dict[int, int] = {}
        """Number of steps by the `id` of the optimizer."""
        self.skipped: dict[int, int] = {}
        """Number of steps that a GradScaler skipped, likewise."""
        self.backwards = 0
        self.limits = limits or StepLimits()
        self.optimizers_made = 0
        """How many optimizers were created or unpickled; they need not be alive any more."""
        self.passes = BackwardPasses(
            self._make_plain_recorder, self._give_up, every=sampling_plan is not None
        )
        """Checks backward passes while there is no optimizer."""
        self.unwatched = False  # whether no guard could be created
        self.on_guard: list[Callable[[ScriptGuard], None]] = []
        """Called with every guard that is created."""
        self.on_recorder: list[Callable[[Recorder], None]] = []
        """Called with the recorder, once it exists."""
        self.on_event: list[Callable[..., None]] = []
        """Called for `pass_begun(loader)`, `batch_drawn(loader, batch)`, `step_ended(optimizer)`,
        and `step_skipped(optimizer)` by a GradScaler, with the name of the event first."""
        self.notices = Notices()
        self._run_dir = run_dir
        self._guard_options = {
            "max_norm": max_norm,
            "policy": policy,
            "settings": settings,
            "snapshots": snapshots,
        }
        self._sampling_plan = sampling_plan or SamplingPlan()
        self._framework_guard: ScriptGuard | None = None
        """The guard, while a framework has the loop: its callback reports batches and steps."""
        self._search = TrainingSearch(trained)
        self.tracer = StepTracer(shared=True)
        """Traces steps as they run; every guard of this launch uses it."""
        self._scaled: list[ScaledLoss] = []  # whose backward pass has not begun yet
        self._new_optimizer = True  # look for optimizers: at first, and if one was created
        self._kept: list[Optimizer] = []  # keeps them alive, so that no `id` is reused
        self._script: dict[str, Any] | None = None
        self._ignored: Any = None  # the handler of Ctrl-C while it is ignored
        self.samples: Sequence[Any] = ()
        """Indices of the samples of the last batch; empty if they are not known."""
        self._early = EarlyBatches()
        self._stack = ExitStack()
        self.children_before = children_seconds()
        self._pid = os.getpid()  # in a forked child nothing is guarded or recorded

    def __enter__(self) -> ScriptLauncher:
        for hook in (
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._stack.callback(hook.remove)
        patching.add_listener(self)
        self._stack.callback(patching.remove_listener, self)
        self._stack.enter_context(observe_loaders(self))
        for name in ("__init__", "__setstate__"):
            self._stack.enter_context(call_after(Optimizer, name, self._optimizer_made))
        self._stack.enter_context(self.limits.limit_time())
        _active.append(self)
        self._stack.callback(_active.remove, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tracer.stop()
        self._stack.close()

    def close(
        self, error: BaseException | None = None, unguarded: NoStepReason | None = None
    ) -> None:
        """The run is over: close the guard, and finish the checks.

        `error`: the exception that ended the script, if one did. `unguarded`: why no step was made.
        """
        try:
            with worker_signals_ignored():
                if error is None and unguarded is not None:
                    facts = {**unguarded.to_dict(), "backwards": self.backwards}
                    self._make_plain_recorder().event(self.step, UNGUARDED, facts)
                self._close(error)
        finally:
            if self._ignored is not None:
                signal.signal(signal.SIGINT, self._ignored)

    def _close(self, error: BaseException | None) -> None:
        if self.guard is not None:
            kind = None if error is None else type(error)
            self.guard.__exit__(kind, error, None)
            return
        recorder = self._make_plain_recorder()
        if error is not None:
            record_failure(recorder, error, self._early.failure_moment(self._script))
        recorder.close(self.step)

    def interrupted(self) -> None:
        """Ctrl-C ends the script: notify the supervisor, and ignore a second Ctrl-C."""
        if self.recorder is not None:
            self.recorder.heartbeat.signalled()
        with suppress(ValueError):  # not the main thread
            self._ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)

    @property
    def step(self) -> int:
        """Number of the current step, counted from 0; of the backward pass without an optimizer."""
        if self.guard is not None:
            return self.guard.step
        return self.passes.step

    @property
    def by_hand(self) -> bool:
        """Whether the weights change although no torch optimizer steps."""
        return self.passes.weights_change and not self.steps

    @property
    def replaying(self) -> bool:
        """Whether a bad step is being run again: nothing must be counted or recorded."""
        return self.guard is not None and self.guard.replaying

    def make_recorder(self, **how: Any) -> Recorder:
        """The one recorder of this launch; created by the first guard."""
        if self.recorder is None:
            self.recorder = Recorder(**{"sampling_plan": self._sampling_plan, **how})
            for listener in self.on_recorder:
                listener(self.recorder)
        return self.recorder

    def _make_plain_recorder(self) -> Recorder:
        """The recorder of a run without a guard, unless there is one."""
        how = {"settings": self.settings, "policy": self.policy, "run_dir": self._run_dir}
        return self.make_recorder(**how, facts={}, notices=self.notices, always=("grad_norm",))

    # Called by the torch patches.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if os.getpid() != self._pid:
            return
        self._stop_without_step()
        self.backwards += 1
        due = self._new_optimizer and not self.replaying
        # A pass that reaches no parameter computes something else: the gradient of an input, say.
        scaled, self._scaled = self._scaled, []
        if due and live_objects.may_train(live_objects.find_leaves(roots)):
            before = self.guard
            self._make_guard(roots)
            if self.guard is not None and self.guard is not before:
                self.guard.replay_backward_start(roots, scaled)
        if self._checks_passes:
            self.passes.begin(roots)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._checks_passes:
            self.passes.ended(roots, self.tracer)

    @property
    def _checks_passes(self) -> bool:
        """Whether no guard sees the backward passes."""
        return self.guard is None and not (os.getpid() != self._pid or self.unwatched or self.steps)

    def skips_update(self, gradients: Sequence[Tensor]) -> bool:
        """Whether an optimizer that is no torch optimizer must not apply these gradients.

        Raises TrainingHalted where the policy ends the run.
        """
        return self._checks_passes and self.passes.skips_update(gradients)

    def _give_up(self, what: str) -> None:
        """Called while an exception of our own is handled."""
        self.unwatched = True
        if os.environ.get("HEADWAY_STRICT") == "1":
            raise
        logger.debug(what, exc_info=True)

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaled = [
            *self._scaled[-MAX_SCALED_LOSSES:],
            (scaler, loss.detach(), weakref.ref(result)),
        ]

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        self._before_scaler = self.steps.get(id(optimizer), 0)

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        if not self.replaying and self.steps.get(id(optimizer), 0) == self._before_scaler:
            self.skipped[id(optimizer)] = self.skipped.get(id(optimizer), 0) + 1
            if self.guard is not None:
                self.guard.step_over()
            self._step_counted("step_skipped", optimizer)

    # Called by the loaders.

    def pass_begun(self, loader: Any) -> None:
        self._notify("pass_begun", loader)

    def batch_wanted(self, frame: FrameType | None) -> Iterator[Any] | None:
        guard = self.guard
        if guard is None or guard.replaying or guard is self._framework_guard:
            return None
        guard.step_done()
        if not guard.rerun_pending or frame is None or not is_user_frame(frame):
            return None
        return guard.rerun_in_loop(frame)

    def batch_drawn(
        self, loader: Any, batch: Any, waited: float, samples: DrawnSamples | None
    ) -> None:
        self.tracer.batch_drawn(batch)
        self.samples = () if samples is None else samples.listed()
        self._notify("batch_drawn", loader, batch)
        if self.guard is not None:
            origin = None if samples is None else BatchOrigin.of(samples, loader)
            by_framework = self.guard is self._framework_guard
            self.guard.batch_drawn(batch, waited, origin, reported=by_framework)
            return
        self._early.add(batch)

    # Called by the optimizers.

    def _optimizer_made(self, optimizer: Optimizer, args: Any, result: Any) -> None:
        self._new_optimizer = True
        self.optimizers_made += 1
        if self._script is None:  # now, while the script is the main module
            self._script = running_script()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        known = () if self.guard is None else self.guard.optimizers
        for item in known:
            if item is optimizer:
                return
        if os.getpid() == self._pid and not count_running_steps(known):
            self._make_guard((), optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.replaying or os.getpid() != self._pid:
            return
        if id(optimizer) not in self.steps:
            self._kept.append(optimizer)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        self._step_counted("step_ended", optimizer)

    def _notify(self, event: str, *about: Any) -> None:
        for listener in self.on_event:
            listener(event, *about)

    def _step_counted(self, event: str, optimizer: Optimizer) -> None:
        self._notify(event, optimizer)
        made = self.steps.get(id(optimizer), 0) + self.skipped.get(id(optimizer), 0)
        if self.limits.reached(made):
            if self.guard is not None:
                self.guard.rerun_last_step(current_frame(1))
            self.limits.stop()

    def _stop_without_step(self) -> None:
        """Limits hold for a script without optimizer steps too. Called between two passes."""
        if self.steps or self.skipped or not self.backwards:
            return
        if self.by_hand:
            reached = self.limits.reached(self.passes.count)
        else:
            reached = self.limits.reached_without_step(self.backwards)
        if reached:
            self.limits.stop()

    def guard_framework(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], **options: Any
    ) -> ScriptGuard | None:
        """Guard the loop of a framework, whose callback calls `saw_batch` and `step_done`.

        `options` of `Guard`, except for `run_dir`. None: no guard could be created.
        """
        self._create_guard(models, optimizers, **options)
        self._framework_guard = self.guard
        return self.guard

    def framework_ended(self, guard: ScriptGuard) -> None:
        """The loop of the framework is over; the guard stays, in case another loop follows."""
        if self._framework_guard is guard:
            self._framework_guard = None

    def _make_guard(self, roots: Sequence[Tensor], stepping: Optimizer | None = None) -> None:
        if self.unwatched:
            return
        self._new_optimizer = False  # what is not found now is not there until one is created
        optimizers, models = self._search.find(roots, stepping, self.steps)
        if models:
            self._create_guard(models, optimizers)

    def _create_guard(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], **options: Any
    ) -> None:
        self._new_optimizer = False
        self.passes.forget()
        old, self.guard, self._framework_guard = self.guard, None, None
        if old is not None:
            old.retire()
            if self.recorder is not None and old.step:
                another = live_objects.share_no_parameter(old.optimizers, optimizers)
                self.recorder.begin_segment(training=another)
        try:
            self.guard = ScriptGuard(
                models,
                optimizers,
                self.make_recorder,
                self._sampling_plan,
                self.tracer,
                **{**self._guard_options, **options, "run_dir": self._run_dir},
            )
        except Exception:  # ours, or an unknown kind of model: the script goes on
            self._give_up("no guard can be created")
            return
        self.guard.session.machine.batch_history = self._early.hand_over()
        if old is not None:
            self.guard.count_from(old.step)
        for listener in self.on_guard:
            listener(self.guard)
