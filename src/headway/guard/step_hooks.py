"""The order of work around `optimizer.step()`, each part protected from a defect of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from headway.guard.fail_safe import FailedRank, FailSafe
from headway.guard.optimizer_step import OptimizerStep
from headway.guard.step_machine import StepMachine
from headway.rerun import in_script
from headway.rerun.controller import RerunController
from headway.rerun.protocol import RerunMoment
from headway.torch_adapters.frames import current_frame
from headway.torch_adapters.optimizer_adapter import (
    AnsweredClosure,
    LineSearchState,
    find_closure,
    with_closure,
)
from headway.torch_adapters.rank_group import RankGroup


class StepHooks:
    """The hooks of the guarded optimizers."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        *,
        machine: StepMachine,
        rerun: RerunController,
        protected: FailSafe,
        failed_rank: FailedRank,
        ranks: RankGroup | None,
        stop_if_asked: Callable[[], None],
    ) -> None:
        """`stop_if_asked` ends the training where the policy, or a signal, asks for it."""
        self._machine = machine
        self._rerun = rerun
        self._protected = protected
        self._failed_rank = failed_rank
        self._ranks = ranks
        self._stop_if_asked = stop_if_asked
        self._search: LineSearchState | None = None
        self._handles = [
            handle
            for item in optimizers
            for handle in (
                item.register_step_pre_hook(self._before_step),
                item.register_step_post_hook(self._after_step),
            )
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        sandbox = self._rerun.sandbox
        if sandbox is not None:
            return sandbox.before_step(optimizer, args, kwargs)
        if in_script.pending is not None:
            in_script.refuse_training_step()
        step = self._machine.optimizer_steps[id(optimizer)]
        closure = find_closure(args, kwargs)
        if closure is None or self._protected.tripped:
            self._begin(step)
            return None
        # A line search calls its closure many times: the first result is measured and reused.
        self._search = self._protected(LineSearchState.keep, optimizer)
        with torch.enable_grad():
            loss = closure()
        skipped = self._begin(step)
        return with_closure(args, kwargs, AnsweredClosure(closure, loss, held=skipped))

    def _begin(self, step: OptimizerStep) -> bool:
        """Whether the update is skipped. A guard that has failed still votes."""
        protected = self._protected
        if step.vote is not None:
            step.vote.step_begins()
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

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        sandbox = self._rerun.sandbox
        if sandbox is not None:
            sandbox.after_step(optimizer)
            return
        search, self._search = self._search, None
        step = self._machine.optimizer_steps[id(optimizer)]
        self._protected(step.after, search)
        if self._protected.tripped:
            step.let_go()
        self._follow_ranks()
        frame = current_frame(1)
        self._protected(self._machine.step_ended, frame)
        if self._rerun.pending:
            self._rerun.rerun(RerunMoment.AFTER_STEP, frame)
        self._protected(self._rerun.step_complete)
        self._stop_if_asked()

    def _follow_ranks(self) -> None:
        if self._ranks is not None and self._ranks.off:
            self._protected.switch_off(self._ranks.off)
