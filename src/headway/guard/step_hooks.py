"""The order of work around `optimizer.step()`, each part protected from bugs in headway.

`MissingSteps` reports a training that continues while none of the guarded optimizers steps.
"""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from headway.checks.setup.hd003_nothing_guarded import UNGUARDED
from headway.guard.fail_safe import FailedRank, FailSafe
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.recorder import Recorder
from headway.guard.recovery.recovery_manager import RecoveryManager
from headway.guard.step_machine import StepMachine
from headway.guard.step_outcomes import StepCounter, StepOutcomes
from headway.output.notices import Notices
from headway.rerun import in_script
from headway.rerun.controller import RerunController
from headway.rerun.protocol import RerunMoment
from headway.torch_adapters import live_objects, patching
from headway.torch_adapters.frames import current_frame
from headway.torch_adapters.optimizer_adapter import (
    CachedLossClosure,
    Closure,
    LineSearchState,
    SavedStep,
    find_closure,
    is_torchs_own,
    with_closure,
)
from headway.torch_adapters.process_groups.rank_group import RankGroup
from headway.torch_adapters.runtime_state import is_capturing, keep_uncompiled
from headway.torch_adapters.step_skipping import (
    ClosureStep,
    add_step_hooks,
    count_running_steps,
)

CAPTURED = (
    "optimizer.step() is recorded into a CUDA graph: replays of the graph are not guarded. "
    "Call optimizer.step() outside the graph to have bad updates skipped"
)
OWN_SIGNAL = getattr(signal, "SIGUSR1", None)
"""A signal that a script may use as it likes, to save without ending for instance."""


class StepHooks:
    """The hooks of the guarded optimizers."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        *,
        machine: StepMachine,
        outcomes: StepOutcomes,
        recovery: RecoveryManager,
        rerun: RerunController,
        protected: FailSafe,
        ranks: RankGroup | None,
        notices: Notices,
        close: Callable[[], None],
    ) -> None:
        """`close` closes the guard. Its reference keeps a guard alive that the user has dropped."""
        self._machine = machine
        self._outcomes = outcomes
        self._recovery = recovery
        self._rerun = rerun
        self._protected = protected
        self._failed_rank = FailedRank(machine)
        self._ranks = ranks
        self.close = close
        self._notices = notices
        self._optimizers = optimizers
        self._search: SavedStep | None = None
        self._closure_step: ClosureStep | None = None
        self._running: list[Optimizer] = []
        """Optimizers whose step has begun; the first one is measured."""
        before, after = keep_uncompiled(self._before_step), keep_uncompiled(self._after_step)
        self._remove = [add_step_hooks(item, before, after) for item in optimizers]
        self.observer = protected.around(machine, self._failed_rank)
        """Receives the events of torch."""
        rerun.connect(protected, self.observer)
        patching.add_listener(self.observer)

    def remove(self) -> None:
        patching.remove_listener(self.observer)
        for remove in self._remove:
            remove()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        sandbox = self._rerun.sandbox
        if sandbox is not None:
            return sandbox.before_step(optimizer, args, kwargs)
        if in_script.pending is not None:
            in_script.refuse_training_step()
        if self._running:
            if count_running_steps(self._optimizers) > 1:
                # A wrapper around another optimizer, or a subclass that calls `super().step()`.
                self._running.append(optimizer)
                return None
            self._abandon_step()
        if is_capturing():
            self._notices.once("captured-step", CAPTURED)
            self._protected(self._machine.step_captured)
            return None
        self._running.append(optimizer)
        step = self._machine.optimizer_steps[id(optimizer)]
        closure = find_closure(args, kwargs)
        self._rerun.tracer.step_comes(optimizer, closure=closure is not None)
        if closure is None or self._protected.tripped:
            self._begin(step)
            return None
        if not is_torchs_own(optimizer):
            return self._begin_within(step, closure, args, kwargs)
        # A line search calls its closure many times: the first result is measured and reused.
        self._search = self._protected(LineSearchState.keep, optimizer)
        with torch.enable_grad():
            loss = closure()
        skipped = self._begin(step)
        return with_closure(args, kwargs, CachedLossClosure(closure, loss, held=skipped))

    def _begin_within(self, step: OptimizerStep, closure: Closure, args: Any, kwargs: Any) -> Any:
        """Judge the step when the optimizer calls its closure for the first time."""
        within = self._protected(ClosureStep, step.optimizer)
        if within is None:
            self._begin(step)
            return None
        self._closure_step, self._search = within, within.saved
        return with_closure(args, kwargs, within.judged(closure, lambda: self._begin(step)))

    def _begin(self, step: OptimizerStep) -> bool:
        """Whether the update is skipped. A guard that has failed still votes."""
        protected = self._protected
        if step.vote is not None:
            step.vote.step_begins()
        if step.transfer.lag:
            protected(step.transfer.collect)
        if protected.tripped:
            self._failed_rank.receive_outcome(step)
        if self._rerun.pending:  # after this step the weights are different
            self._rerun.rerun(RerunMoment.NEXT_STEP, current_frame(2))
        skipped = bool(protected(step.before))
        if skipped:
            self._machine.skip_step()
        if protected.tripped:
            self._failed_rank.step(step)
        self._follow_ranks()
        return skipped

    def _abandon_step(self) -> None:
        """The last step has raised an exception: no hook came after it."""
        step = self._machine.optimizer_steps[id(self._running[0])]
        self._running.clear()
        self._end_closure()
        self._protected(step.let_go)
        step.measure.losses.clear()  # they are judged

    def _end_closure(self) -> SavedStep | None:
        """The optimizer calls its closure no more; its state before the step, if that was saved."""
        search, self._search = self._search, None
        within, self._closure_step = self._closure_step, None
        if within is not None:
            within.over()
        return search

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        sandbox = self._rerun.sandbox
        if sandbox is not None:
            sandbox.after_step(optimizer)
            return
        if not self._running or self._running.pop() is not optimizer or self._running:
            return
        search = self._end_closure()
        step = self._machine.optimizer_steps[id(optimizer)]
        self._protected(step.after, search)
        if self._protected.tripped:
            step.let_go()
        self._follow_ranks()
        frame = current_frame(1)
        self._protected(self._machine.step_ended, frame)
        if self._rerun.pending:
            self._rerun.rerun(RerunMoment.AFTER_STEP, frame)
        self._protected(self._rerun.step_complete, frame)
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """End the training if the policy halts it or a signal requests it."""
        self._outcomes.raise_if_halted()
        preemption = self._recovery.preemption
        if self._ranks is None and (preemption is None or preemption.asked is None):
            return
        number = self._recovery.asked_to_leave()
        if number is None or self._machine.in_body:
            return
        theirs = None if preemption is None else preemption.pass_on()
        if theirs is not None and number == OWN_SIGNAL and self._ranks is None:
            self._pass_signal_on(number, theirs)
            return
        self._protected(self._recovery.leave, number)
        self.close()
        if theirs is None:
            raise SystemExit(128 + number)
        theirs(number, None)

    def _pass_signal_on(self, number: int, theirs: Callable[..., Any]) -> None:
        """The script handles a signal whose meaning is its own: it ends the run, or goes on."""
        saved: list[bool] = []
        self._protected(lambda: saved.append(self._recovery.save_on_signal(number)))
        if self._recovery.preemption is not None:
            self._recovery.preemption.asked = None
        try:
            theirs(number, None)
        except BaseException:  # raised by the script's handler to end the run
            self._recovery.interrupted(number, saved=any(saved))
            self.close()
            raise

    def _follow_ranks(self) -> None:
        if self._ranks is not None and self._ranks.off:
            self._protected.switch_off(self._ranks.off)


# Training that goes on while none of the guarded optimizers steps. The usual reason: the optimizer
# was created again after the guard, for example to load a checkpoint.

FOREIGN_STEPS = 3
"""Steps in a row of another optimizer with the same parameters, before it is reported."""
PASSES_UNTIL_ARMED = 25
"""Backward passes without a guarded step after which steps of other optimizers are observed."""
MAX_PASSES = 1000
"""Backward passes without any step that are reported: more than gradients accumulate over."""


class NoMissingSteps:
    """For a guard whose launcher finds every optimizer, and for the replay of an incident."""

    def __init__(self, *_: Any) -> None:
        pass

    def close(self, *, well: bool) -> None:
        pass


class MissingSteps(patching.TorchListener):
    """Counts backward passes since the last guarded step, and observes who steps instead.

    On a healthy run it costs one comparison for each backward pass: the hook on all optimizers is
    installed only until the first step, and again after many passes without one.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        recorder: Recorder,
        counter: StepCounter,
        protected: FailSafe,
    ) -> None:
        self._protected = protected
        self._optimizers = optimizers
        self._recorder = recorder
        self._counter = counter
        self._seen = counter.made
        """The number of steps at the last backward pass."""
        self._passes = 0
        """Backward passes since the last guarded step."""
        self._foreign = 0
        self._trains = False
        """Whether a backward pass has filled gradients of a guarded optimizer."""
        self.reported = False
        self._hook: Any = None
        self._arm()
        patching.add_listener(self)

    def close(self, *, well: bool) -> None:
        """The guard closes; `well`: no error stopped the training."""
        patching.remove_listener(self)
        self._disarm()
        counter = self._counter
        if well and self._trains and counter.made == counter.first:
            self._report(
                f"backward() ran {_times(self._passes)}, but none of the guarded optimizers "
                "stepped before guard.close()"
            )

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        made = self._counter.made
        if made != self._seen:
            self._seen, self._passes, self._foreign = made, 0, 0
            if self._hook is not None:
                self._disarm()
            return
        self._passes += 1
        if not self._trains:
            self._trains = self._has_gradients()
        if self.reported:
            return
        if self._hook is None and self._passes >= PASSES_UNTIL_ARMED:
            self._arm()
        if self._passes == MAX_PASSES and self._has_gradients():
            self._report(
                f"backward() ran {MAX_PASSES} times since the last step of a guarded optimizer"
            )

    def _arm(self) -> None:
        # Weak: torch's table of hooks must not keep a guard alive that was dropped.
        watch = weakref.WeakMethod(self._other_stepped)

        def stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            method = watch()
            if method is not None:
                method(optimizer)

        self._hook = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, self._hook.remove)

    def _disarm(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _other_stepped(self, optimizer: Optimizer) -> None:
        if self.reported or self._counter.made != self._seen:
            return
        wrapped = (optimizer, live_objects.wrapped_optimizer(optimizer))
        inner = [live_objects.wrapped_optimizer(item) for item in self._optimizers]
        if any(item is other for item in (*self._optimizers, *inner) for other in wrapped if other):
            return
        guarded = {id(p) for item in self._optimizers for p in _parameters(item)}
        if any(id(p) in guarded for p in _parameters(optimizer)):
            self._foreign += 1
            if self._foreign >= FOREIGN_STEPS:
                self._report(
                    f"another {type(optimizer).__name__} steps the same parameters, created after "
                    "the one that the guard knows"
                )

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for item in self._optimizers for p in _parameters(item))

    def _report(self, why: str) -> None:
        if self.reported:
            return
        self.reported = True
        self._disarm()
        facts = {
            "why": why,
            "advice": "Create the guard after the last optimizer is created, and pass it every "
            "optimizer that steps.",
            "backwards": self._passes,
            "command": "guard",
        }
        self._protected(self._recorder.event, self._counter.current, UNGUARDED, facts)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
