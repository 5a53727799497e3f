"""The order of work around `optimizer.step()`, each part protected from a bug of our own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from headway.guard.fail_safe import FailedRank, FailSafe
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.recovery.recovery_manager import RecoveryManager
from headway.guard.step_machine import StepMachine
from headway.guard.step_outcomes import StepOutcomes
from headway.output.notices import Notices
from headway.rerun import in_script
from headway.rerun.controller import RerunController
from headway.rerun.protocol import RerunMoment
from headway.torch_adapters import patching
from headway.torch_adapters.frames import current_frame
from headway.torch_adapters.optimizer_adapter import (
    AnsweredClosure,
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
        return with_closure(args, kwargs, AnsweredClosure(closure, loss, held=skipped))

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
            self._failed_rank.hear(step)
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
        """End the training where the policy halts it, or a signal asks to leave."""
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
        except BaseException:
            self._recovery.interrupted(number, saved=any(saved))
            self.close()
            raise

    def _follow_ranks(self) -> None:
        if self._ranks is not None and self._ranks.off:
            self._protected.switch_off(self._ranks.off)
