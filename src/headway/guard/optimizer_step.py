"""Measures the steps of one optimizer, between the two hooks of `optimizer.step`.

`StepMachine` numbers the steps, `UpdateBrake` skips or clips the update, and `StepOutcomes` gets
the numbers when they arrive on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.core.bound import Bound, History
from headway.core.state import decode, encode
from headway.guard.brake.adaptive_clipper import AdaptiveClipper, RateFactor
from headway.guard.brake.update_brake import UpdateBrake
from headway.guard.measure.gradient_measure import collect_gradients
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.measure.step_measure import StepMeasure
from headway.guard.measure.step_record import DeviceTransfer, HostTransfer, Readings
from headway.guard.ranks.rank_table import RankField
from headway.guard.ranks.rank_vote import RankReport, StepVote
from headway.output.notices import Notices
from headway.policy import Policy
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.optimizer_adapter import LossScaling, SavedStep, is_fused_on_cuda
from headway.torch_adapters.process_groups.local_gradients import LocalGradientMonitor
from headway.torch_adapters.process_groups.rank_group import RankGroup
from headway.torch_adapters.runtime_state import without_gradients
from headway.torch_adapters.saved_state import BufferBackup

NO_GRADIENTS = (
    "optimizer.step() was called, but no parameter has a gradient: nothing was updated. "
    "Call backward() first, on a loss that depends on the model"
)


class StepOrder(Protocol):
    """Numbers the steps: see `StepMachine`."""

    def begin_step(self, step: OptimizerStep, context: StepContext) -> bool: ...

    def host_values(self, context: StepContext) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts that the optimizers of a guard share."""

    order: StepOrder
    deliver: Callable[..., None]
    """Receives the numbers of each step: see `StepOutcomes.deliver`."""
    foresee: Callable[[StepContext], None]
    """Receives a step that all ranks have agreed to skip and that may be run again."""
    policy: Policy
    plan: SamplingPlan
    max_norm: float | None
    bound: Bound
    """The bound on the gradient norm."""
    alone: bool
    """Whether there is one optimizer only."""
    buffers: BufferBackup
    scaling: LossScaling
    notices: Notices
    ranks: RankGroup | None
    origins: LocalGradientMonitor | None


class OptimizerStep:
    """Guards the steps of one optimizer."""

    def __init__(
        self, optimizer: Optimizer, number: int, parts: StepParts, clipper: AdaptiveClipper | None
    ) -> None:
        self.optimizer = optimizer
        self.suffix = f"#{number}" if number else ""
        """Distinguishes its signals from those of the first optimizer."""
        self.fired = False
        """Whether the pre-hook ran since a GradScaler set out to step."""
        self.inside = False
        """Between the two hooks: backward passes now belong to a line search."""
        self.skip_next = False
        """Whether the next update must be skipped: its batch did not fit into memory."""
        self._parts = parts
        policy = parts.policy
        self.rate = RateFactor(optimizer, policy.back_off_steps, policy.rewarm_steps)
        self.measure = StepMeasure(
            optimizer, parts.plan, buffers=parts.buffers, scaling=parts.scaling, alone=parts.alone
        )
        self.tokens = self.measure.tokens
        self._brake = UpdateBrake(
            optimizer,
            parts.bound,
            hold_spikes=policy.hold_spikes,
            max_norm=parts.max_norm,
            clipper=clipper,
        )
        self._context: StepContext | None = None
        self._tensors: dict[str, Tensor] = {}
        self._pending: tuple[StepContext, dict[str, Tensor]] | None = None
        """The last step with other ranks, until its numbers have arrived."""
        self._steps = 0
        self._fused = is_fused_on_cuda(optimizer)
        device = self._device()
        self.transfer: HostTransfer | DeviceTransfer = (
            DeviceTransfer(self._deliver, device)
            if device.type == "cuda"
            else HostTransfer(self._deliver)
        )
        self.vote: StepVote | None = None
        """This optimizer's vote among the ranks; None in a single process."""
        if parts.ranks is not None and parts.origins is not None:
            self.vote = StepVote(
                parts.ranks,
                parts.origins,
                self.parameters(),
                self.transfer.lag,
                parts.plan.weights_every,
            )

    @property
    def history(self) -> History:
        """Gradient norms of the run, which bound the next one."""
        return self._brake.history

    # Backward passes and the user's clipping.

    def backward_begins(self) -> None:
        """A backward pass is about to run somewhere."""
        if not self.inside and self.tokens.backward_begins():
            self.measure.losses.clear()
            if self.vote is not None:
                self.vote.gradients_cleared()

    def backward_ended(self, losses: Sequence[Tensor], components: dict[str, Tensor]) -> None:
        """A backward pass ran; its losses count here if it reached these gradients."""
        if self.inside:
            return
        if self.tokens.backward_ended():
            self.measure.losses.add(losses, components)
            self.measure.clips.forget()
        else:
            self.measure.losses.add_elsewhere(losses)

    # Around the step.

    @without_gradients
    def before(self) -> bool:
        """The optimizer is about to step. True when its update is skipped.

        The numbers that are due have been collected.
        """
        self.fired = True
        self._brake.bad_on_device = None
        if self.vote is not None and self.vote.ranks.off:
            return False
        if self.skip_next:
            self.skip_next = False
            self.skipped_by_scaler("memory_skipped", 0.0)
            self.hold()
            return True
        measure = self.measure
        parameters, gradients = collect_gradients(self.optimizer)
        if not gradients:
            measure.clips.forget()
            self._parts.notices.once("no-gradients", NO_GRADIENTS)
            if self.vote is not None:
                self._vote_idle(self.vote)
            return False
        scale: Tensor | None = getattr(self.optimizer, "grad_scale", None)
        parameters, gradients = measure.recall_clip(parameters, gradients, scale)
        if self.rate.low != 1.0:
            self.rate.apply()
        context = self._open_context(parameters)
        sharded = self.vote is not None and self.vote.sharded
        tensors = measure.gradient_tensors(context, gradients, scale, sharded=sharded)
        self._context, self._tensors = context, tensors
        self._judge(context, gradients, tensors, scale, sharded=sharded)
        measure.clips.forget()
        measure.watch_update(context)
        self.inside = True
        self._steps += 1
        return context.held

    def _judge(
        self,
        context: StepContext,
        gradients: list[Tensor],
        tensors: dict[str, Tensor],
        scale: Tensor | None,
        *,
        sharded: bool,
    ) -> None:
        vote, clip = self.vote, self.measure.clip
        grouped = vote is not None
        if vote is not None:
            self._vote(vote, context, tensors)
        if self._fused:
            self._brake.judge_on_device(context, tensors, scale, clip, grouped=grouped)
        elif self._brake.judge_on_host(
            context,
            gradients,
            tensors,
            clip,
            self.measure.gradient_plan,
            grouped=grouped,
            sharded=sharded,
        ):
            if vote is not None:
                vote.hold_agreed = True
                if not self.transfer.lag and _rerunnable(tensors):
                    self._parts.foresee(context)
            self._brake.skip()
        if vote is not None and self.transfer.lag:
            self._pending = context, tensors

    @without_gradients
    def after(self, search: SavedStep | None = None) -> None:
        """The update was applied, or skipped."""
        self.let_go()
        self.tokens.stepped()
        context, tensors = self._context, self._tensors
        self._context, self._tensors = None, {}
        if context is None:
            return
        if search is not None and (context.held or search.went_bad()):
            search.put_back()
            if self._brake.clipper is not None and not context.held:
                self._brake.clipper.undo()
            context.unseen = not context.held
            context.held = True
        self.measure.settle_buffers(context, tensors, self._brake.bad_on_device)
        sample = self.measure.update_sample(context)
        if sample is not None and not (self.vote and self.vote.keep_update(sample)):
            context.updated, tensors["weight_norms"], tensors["update_norms"] = sample
        self.measure.losses.clear()
        self.transfer.send(context, tensors)
        if context.held and context.iteration is not None:
            self.transfer.flush()  # while the loop is where it went bad

    @torch.no_grad()
    def skipped_by_scaler(self, signal: str = "scaler_skipped", norm: float = math.inf) -> None:
        """A GradScaler found an overflow and did not call `optimizer.step`.

        Other reasons to skip a step have their own `signal`, and the same effect on other ranks.
        """
        self.transfer.collect()
        if self.vote is not None and self.vote.ranks.off:
            return
        parameters, _ = collect_gradients(self.optimizer)
        context = self._new_context(parameters)
        context.sampled = False
        context.values["scaler_skipped"] = context.values[signal] = 1.0
        context.held = signal != "scaler_skipped"
        tensors = self.measure.loss_tensors(context, self._device())
        tensors["total"] = torch.full((), norm, device=self._device())
        if self.vote is not None:
            self.vote.cast(RankReport.of(context, skipped=torch.ones(())), tensors, self, ())
            tensors["total"] = torch.full_like(tensors["total"], norm)
        self._brake.bad_on_device = None
        self.measure.settle_buffers(context, tensors, None)
        self.measure.clips.forget()
        self.tokens.stepped()
        self.measure.losses.clear()
        self.transfer.send(context, tensors)

    def expect_pending_rerun(self) -> None:
        """This guard has failed: if the last step was bad, the other ranks may re-run it now."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        context, tensors = pending
        held = [tensors[name] for name in ("bad", "scaler_skipped") if name in tensors]
        if _rerunnable(tensors) and (context.held or any(map(bool, held))):
            self._parts.foresee(context)

    def hold(self) -> None:
        """Skip the update even if our guard has failed: all ranks agreed to."""
        self._brake.skip()

    def let_go(self) -> None:
        """Restore what was replaced for the step, and what was set on the optimizer."""
        self._brake.release()
        held = self._context is not None and self._context.held
        if self.rate.low != 1.0:
            self.rate.remove(stepped=self.inside and not held)
        self.inside = False

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        return {
            "history": encode(self._brake.history),
            "rate": self.rate.state_dict(),
            "steps": self._steps,
            **self.measure.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._brake.history = decode(state["history"])
        self.rate.load_state_dict(state["rate"])
        self._steps = state["steps"]
        self.measure.load_state_dict(state)

    # Before the step.

    def _open_context(self, parameters: Sequence[Tensor]) -> StepContext:
        carried = self._steps > 0 and self.measure.losses.backwards > 0 and not self.tokens.cleared
        self.tokens.choose(parameters)
        context = self._new_context(parameters)
        if carried:
            context.values["grads_carried"] = 1.0
        return context

    def _new_context(self, parameters: Sequence[Tensor]) -> StepContext:
        context = self.measure.new_context(parameters)
        first = self._parts.order.begin_step(self, context)
        context.sampled = self.measure.is_sampled(context.step)
        if first:
            context.values.update(self._parts.order.host_values(context))
        if self.measure.losses.backwards > 1:
            context.values["micro_batches"] = float(self.measure.losses.backwards)
        return context

    # With other ranks.

    def _vote(self, vote: StepVote, context: StepContext, tensors: dict[str, Tensor]) -> None:
        """Vote; from now on the numbers describe all ranks."""
        clip = self.measure.clip
        report = RankReport.of(
            context,
            skipped=getattr(self.optimizer, "found_inf", None),
            clip=None if clip is None else clip.total,
            doubt=None if clip is None else clip.coefficient,
            sampled=context.sampled,
            batches=context.batches,
        )
        update = vote.cast(report, tensors, self.measure.gradient_plan.key, context.parameters)
        if update is not None:
            context.updated, tensors["weight_norms"], tensors["update_norms"] = update

    def _vote_idle(self, vote: StepVote) -> None:
        """Nothing to step here, but other ranks may have gradients and wait for this vote."""
        context = self._new_context(())
        context.sampled, context.limit = False, self.history.limit()
        tensors = self.measure.loss_tensors(context, self._device())
        tensors["total"] = torch.zeros((), device=self._device())
        vote.cast(RankReport.of(context, idle=True), tensors, self, ())
        self._context, self._tensors = context, tensors

    # When the numbers have arrived.

    def _deliver(self, context: StepContext, readings: Readings) -> None:
        total = readings["total"][0]
        loss = readings["loss"][0] if "loss" in readings else 0.0
        if "norms_differ" in readings:
            self.measure.fused_norms.compared(bool(readings["norms_differ"][0]))
        table = None
        if self.vote is not None:
            table = self.vote.delivered(readings["calls"], readings.get("ranks"))
            if self.vote.ranks.off or table.count(RankField.IDLE) == self.vote.ranks.size:
                return
            context.again = table.count(RankField.ONCE_ONLY) == 0
        if readings.get("scaler_skipped", (0.0,))[0]:
            context.values["scaler_skipped"] = 1.0
        skipped = "scaler_skipped" in context.values
        context.held = context.held or skipped or bool(readings.get("bad", (0.0,))[0])
        self._pending = None
        if context.held and context.again:
            self._parts.foresee(context)
        if not math.isfinite(readings.get("coef", (1.0,))[0]):
            context.unseen = True
        outside = not total <= context.limit
        if not skipped:
            self.history.admit(total, outside=outside)
        self._parts.deliver(
            self.suffix,
            context,
            readings,
            nonfinite=context.unseen or not (math.isfinite(total) and math.isfinite(loss)),
            spike=outside and math.isfinite(total),
            table=table,
        )

    def parameters(self) -> list[Tensor]:
        """All parameters of the optimizer."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _device(self) -> torch.device:
        parameters = self.parameters()
        return parameters[0].device if parameters else torch.device("cpu")


def _rerunnable(tensors: Mapping[str, Tensor]) -> bool:
    """Whether every rank can run the step again."""
    return not float(tensors["calls"][RankField.ONCE_ONLY - RankField.LEAVE])
