"""Handles a step whose numbers have arrived: writes its record, and acts on a bad one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headway.errors import TrainingHalted
from headway.guard.measure.parameter_index import StateInspector
from headway.guard.measure.step_record import ExtraSignals, Readings, StepRecordBuilder
from headway.guard.ranks.rank_table import RankField, RankTable
from headway.guard.recorder import Recorder
from headway.guard.recovery.quarantine import Quarantine
from headway.policy import Action, BackOff, Policy, Rung, StepVerdict
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.patching import allow_device_sync
from headway.torch_adapters.process_groups.rank_group import RankGroup
from headway.torch_adapters.saved_state import BufferBackup

if TYPE_CHECKING:
    from headway.guard.optimizer_step import OptimizerStep
    from headway.guard.recovery.recovery_manager import RecoveryManager
    from headway.rerun.controller import RerunController

RESCAN_INTERVAL = 10
"""In a run of bad steps the state is scanned at the first one and then at every tenth."""
SKIPS_UNTIL_TRACED = 4
"""Steps in a row that a GradScaler skips before the next ones are traced: a scaler that only
searches for its scale seldom needs more."""


class StepCounter:
    """The number of steps that were made."""

    __slots__ = ("first", "made")

    def __init__(self) -> None:
        self.made = 0
        self.first = 0
        """The number at which this process began: not 0 after a resume."""

    @property
    def current(self) -> int:
        """The number of the current step, counted from 0."""
        return max(self.made - 1, 0)


class StepOutcomes:
    """Records every step, and acts on bad ones."""

    def __init__(
        self,
        *,
        policy: Policy,
        recorder: Recorder,
        inspection: StateInspector,
        quarantine: Quarantine,
        buffers: BufferBackup,
        ranks: RankGroup | None,
        optimizers: int,
    ) -> None:
        self._policy = policy
        self._recorder = recorder
        self._inspection = inspection
        self._quarantine = quarantine
        self._buffers = buffers
        self._ranks = ranks
        self._optimizers = optimizers
        self.extra_signals = ExtraSignals()
        """Signals that others have measured for the current step."""
        self.last_good = True
        """Whether no optimizer's part of the current step is known to be bad."""
        self.halted = False
        self._halt_error: TrainingHalted | None = None
        self._usual: dict[str, float] = {}
        self._names: tuple[str, ...] = ()
        self._losses: list[str] = []
        """The values of the last good step, and those of them that are losses."""
        self._assembly: StepRecordBuilder | None = None
        self._group_rates: list[float] = []
        self._scaler_skips = 0
        """Steps in a row that a GradScaler has skipped."""
        self._named_parameters = 0
        self._steps: dict[str, OptimizerStep] = {}
        self._recovery: RecoveryManager
        self._rerun: RerunController

    def connect(
        self, recovery: RecoveryManager, rerun: RerunController, steps: Iterable[OptimizerStep]
    ) -> None:
        """Set the parts that are built later."""
        self._recovery, self._rerun = recovery, rerun
        self._steps = {step.suffix: step for step in steps}

    def deliver(
        self,
        optimizer: str,
        context: StepContext,
        readings: Readings,
        *,
        nonfinite: bool,
        spike: bool,
        table: RankTable | None = None,
    ) -> None:
        """The numbers of one optimizer's part of a step have arrived."""
        if self._assembly is not None and self._assembly.step != context.step:
            self.emit()
        if self._assembly is None:
            self._assembly = StepRecordBuilder(context.step, optimizers=self._optimizers)
        assembly = self._assembly
        assembly.add(optimizer, context, readings, self._inspection.parameter_index.positions)
        if table is not None and self._ranks is not None:
            assembly.add_ranks(table, context, self._ranks, bad=nonfinite or spike)
        loss = readings.get("loss", (0.0,))[0]
        poisoned = () if table is None else _poisoned(table)
        # A scaler that skips is searching for a scale; the step is bad only if the loss is.
        if "scaler_skipped" not in context.values or not math.isfinite(loss) or poisoned:
            bad = nonfinite or (spike and self._policy.hold_spikes)
            verdict = StepVerdict(
                context.step,
                nonfinite=bad and nonfinite,
                spike=bad and not nonfinite,
                poisoned=poisoned,
            )
            assembly.verdicts.append((verdict, context, optimizer))
            self._scaler_skips = 0
        else:
            self._scaler_skips += 1
            if self._scaler_skips == SKIPS_UNTIL_TRACED:
                self._rerun.trace_skipped_steps()
            elif self._scaler_skips == SKIPS_UNTIL_TRACED + 1:
                self._rerun.on_skipped_step(context, self._steps[optimizer].parameters())
        if self._optimizers == 1:
            self.emit()

    def emit(self) -> None:
        """Write the record of the step whose numbers are here, and act on it."""
        assembly, self._assembly = self._assembly, None
        if assembly is None:
            return
        values, columns = self.extra_signals.take()
        assembly.values.update(values)
        assembly.columns.update(columns)
        self._name_axes(assembly)
        self._recorder.step(assembly.step, assembly.values, assembly.columns, held=assembly.held)
        if (norms := assembly.columns.get("buffer/norm")) is not None:
            if all(map(math.isfinite, norms.values)):
                self._rerun.unexplained.unused_batches.clear()
            else:
                self._rerun.buffers_are_bad(assembly.step)
        if not assembly.held:
            self._learn_usual(assembly)
        for verdict, context, optimizer in assembly.verdicts:
            self._act(verdict, context, optimizer)

    def usual(self) -> dict[str, float]:
        """Loss, its components and gradient norms of the last good step."""
        return self._usual

    def judge(self, verdict: StepVerdict, rungs: frozenset[Rung], optimizer: str = "") -> Action:
        """Let the policy decide, and carry out its decision."""
        again = self._recorder.ladder(optimizer).rolled_back
        action = self._recorder.judge(verdict, rungs, optimizer)
        if isinstance(action, BackOff):
            self._steps[optimizer].rate.back_off(action.factor)
        elif action.rung is Rung.ROLL_BACK:
            self._recovery.roll_back(action.step, older=again)
        elif action.rung is Rung.HALT:
            self._halt(action.step, action.reason, verdict.poisoned)
        return action

    def raise_if_halted(self) -> None:
        """Stop the run if the policy has halted it."""
        if self._halt_error is not None:
            error, self._halt_error = self._halt_error, None
            raise error

    def _name_axes(self, assembly: StepRecordBuilder) -> None:
        names = self._inspection.parameter_index.names
        if len(names) != self._named_parameters:  # names are only ever added
            self._named_parameters = len(names)
            self._recorder.extend_axis("param", names)
        if "buffer/norm" in assembly.columns:
            self._recorder.extend_axis("buffer", self._buffers.names)
        for axis, extra in self.extra_signals.axes.items():
            self._recorder.extend_axis(axis, extra)
        rates = assembly.columns.get("group/lr")
        if rates is not None and list(rates.values) == self._group_rates:
            del assembly.columns["group/lr"]  # recorded only when it changes
        elif rates is not None:
            self._group_rates = list(rates.values)
            groups = [f"group{at}" for at in range(len(self._group_rates))]
            self._recorder.extend_axis("group", groups)

    def _learn_usual(self, assembly: StepRecordBuilder) -> None:
        recorded = tuple(assembly.values)
        if recorded != self._names:
            self._names = recorded
            self._losses = [n for n in recorded if n == "loss" or n.startswith("loss/")]
        for name in self._losses:
            self._usual[name] = assembly.values[name]
        column = assembly.columns.get("param/grad_norm")
        if column is not None:
            names = self._inspection.parameter_index.names
            self._usual.update({f"grad_norm/{names[at]}": norm for at, norm in column.items()})

    def _act(self, verdict: StepVerdict, context: StepContext, optimizer: str) -> None:
        ladder = self._recorder.ladder(optimizer)
        if not verdict.bad:
            self._rerun.on_good_step(context)
            if not ladder.calm:
                self._recorder.judge(verdict, frozenset(), optimizer)
            return
        self.last_good = False
        with allow_device_sync():
            scan = ladder.in_a_row % RESCAN_INTERVAL == 0
            self._act_on_bad_step(verdict, context, optimizer, scan=scan)

    def _act_on_bad_step(
        self, verdict: StepVerdict, context: StepContext, optimizer: str, *, scan: bool
    ) -> None:
        """Find out whether the weights or a batch are bad, and let the policy decide."""
        poisoned = verdict.poisoned
        if verdict.nonfinite and scan:
            found = self._inspection.state(context.step)
            self._inspection.batches(context.step, context.batches)
            if self._ranks is None:
                poisoned = found
            elif found:  # all ranks decide about it at their next step
                self._ranks.poisoned = True
        whole = StepVerdict(verdict.step, verdict.nonfinite, verdict.spike, poisoned)
        action = self.judge(whole, self._recovery.rungs(whole), optimizer)
        if action.rung in (Rung.SKIP, Rung.BACK_OFF):  # the weights are still those that failed
            self._rerun.on_bad_step(whole, context, self._steps[optimizer].parameters())
        else:
            self._rerun.on_lost_step(context, goes_on=action.rung is Rung.ROLL_BACK)
        if not poisoned:  # bad weights make any batch look bad
            reason = "non-finite" if verdict.nonfinite else "spike"
            self._quarantine.take(context.step, context.batches, reason)

    def _halt(self, step: int, reason: str, poisoned: Sequence[str]) -> None:
        self.halted = True
        where = self._recorder.writer
        self._halt_error = TrainingHalted(
            f"training halted at step {step}: {reason}. "
            + (
                "They were non-finite before this step: do not continue from these weights"
                if poisoned
                else "The weights are those of the last good step"
            )
            + (f"; next: headway diagnose {where.location}" if where and not where.broken else "")
        )


def _poisoned(table: RankTable) -> tuple[str, ...]:
    """The same on every rank; the rank that holds the tensors has recorded which they are."""
    ranks = table.who(RankField.POISONED)
    if not ranks and table.count(RankField.POISONED):  # many of thousands of ranks
        return (f"weights or moments of {table.count(RankField.POISONED)} ranks",)
    return tuple(f"a weight or moment of rank {rank}" for rank in ranks)
