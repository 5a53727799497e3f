"""Measures a step: the losses and gradients of each optimizer before it, the update after it, and
time and memory on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.core.numbers import round_digits
from headway.guard.measure import sampling
from headway.guard.measure.gradient_measure import (
    ClipRecord,
    ClipTracker,
    GradientFreshness,
    GradientNorms,
    GradientPlan,
    measure_norms,
    measure_zero_shares,
)
from headway.guard.measure.sampling import SamplingPlan
from headway.guard.measure.system_sampler import SystemSampler
from headway.guard.memory.retained_graphs import GraphRetention
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.fused_norms import FusedNorms, differ
from headway.torch_adapters.optimizer_adapter import LossScaling
from headway.torch_adapters.process_groups.sharded_tensors import local_values
from headway.torch_adapters.saved_state import BufferBackup

MAX_LOSSES_ELSEWHERE = 16
"""Losses of a step whose backward pass reached none of the optimizer's gradients."""


class StepLosses:
    """Losses of the backward passes since the gradients were last cleared."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._elsewhere: list[Tensor] = []
        self.components: dict[str, Tensor] = {}
        self.backwards = 0
        """Backward passes that reached the gradients."""

    def clear(self) -> None:
        self._losses, self._elsewhere = [], []
        self.components, self.backwards = {}, 0

    def add(self, losses: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        """A backward pass has added to the gradients."""
        self._losses += losses
        for name, value in components.items():
            known = self.components.get(name)
            self.components[name] = value if known is None else known + value
        self.backwards += 1

    def add_elsewhere(self, losses: Sequence[Tensor]) -> None:
        """A backward pass has reached other gradients, as those of fp16 copies of the weights."""
        if len(self._elsewhere) < MAX_LOSSES_ELSEWHERE:
            self._elsewhere += losses

    def tensors(self, device: torch.device, *, elsewhere: bool) -> dict[str, Tensor]:
        """The loss and its components; without a loss, that of passes elsewhere if allowed."""
        tensors: dict[str, Tensor] = {}
        losses = self._losses or (self._elsewhere if elsewhere else [])
        if losses:
            loss = losses[0]
            for more in losses[1:]:
                loss = loss + more
            loss = loss.reshape(()) if loss.ndim else loss
            same = loss.device == device
            tensors["loss"] = loss if same else loss.to(device, non_blocking=True)
        if self.components:
            tensors["components"] = torch.stack(
                [value.reshape(()).to(device, torch.float32) for value in self.components.values()]
            )
        return tensors


class StepMeasure:
    """Measures the steps of one optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        plan: SamplingPlan,
        *,
        buffers: BufferBackup,
        scaling: LossScaling,
        alone: bool,
    ) -> None:
        """`alone`: there is no other optimizer, so every loss is this one's."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.tokens = GradientFreshness(parameters)
        self.losses = StepLosses()
        self.clips = ClipTracker()
        self.clip: ClipRecord | None = None
        """The user's clipping of the gradients of the current step."""
        self.gradient_plan = GradientPlan()
        self.fused_norms = FusedNorms(parameters)
        self._norms_differ: Tensor | None = None
        """Whether the norms of the fused kernel differ from torch's, while both are computed."""
        self._optimizer = optimizer
        self._plan = plan
        self._buffers = buffers
        self._scaling = scaling
        self._alone = alone
        self._sampler = sampling.UpdateSampler(plan.max_tensors, plan.max_elements)
        self._copied = False
        # Counted per optimizer: one that steps at odd batches only is sampled too.
        self._sampled_at = -plan.every
        self._zeros_at = -plan.zeros_every

    def state_dict(self) -> dict[str, Any]:
        return {"sampled_at": self._sampled_at, "zeros_at": self._zeros_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampled_at, self._zeros_at = state["sampled_at"], state["zeros_at"]

    # Backward passes and the user's clipping.

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, scale: Tensor | None
    ) -> None:
        """The user is about to clip these gradients, of which all, some or none are ours."""
        mine = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        if not mine.issuperset(map(id, parameters)):
            ours = [at for at, p in enumerate(parameters) if id(p) in mine]
            parameters = [parameters[at] for at in ours]
            norms = None if norms is None else [norms[at] for at in ours]
        if parameters:
            self.clips.begin(parameters, norms, scale)

    def clipped(self, total: Tensor, max_norm: float) -> None:
        """The clipping is done: record the gradients after it."""
        self.clips.end(total, max_norm)
        self.tokens.look()

    # Before the step.

    def recall_clip(
        self, parameters: list[Tensor], gradients: list[Tensor], scale: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters and gradients in the order in which the user clipped them, if so."""
        self.clip = self.clips.recall(parameters, scale)
        if self.clip is None:
            return parameters, gradients
        parameters = list(self.clip.parameters)
        return parameters, [p.grad for p in parameters if p.grad is not None]

    def new_context(self, parameters: Sequence[Tensor]) -> StepContext:
        """What is known about a step before it has a number."""
        groups = self._optimizer.param_groups
        rates = [_rate(group["lr"]) for group in groups if group.get("lr") is not None]
        return StepContext(
            step=0,
            parameters=parameters,
            lr=rates[0] if rates else math.nan,
            started=0.0,
            sampled=False,
            components=tuple(self.losses.components),
            rates=rates,
        )

    def is_sampled(self, step: int) -> bool:
        """Whether the more expensive measurements are due; called once per step."""
        due = step - self._sampled_at >= self._plan.every
        if due:
            self._sampled_at = step
        return due

    def gradient_tensors(
        self,
        context: StepContext,
        gradients: list[Tensor],
        scale: Tensor | None,
        *,
        sharded: bool,
    ) -> dict[str, Tensor]:
        """Loss, norms before any clipping and other measurements that are due, on their device."""
        self.gradient_plan.update(context.parameters, gradients)
        norms = self._norms(gradients)
        differing, self._norms_differ = self._norms_differ, None
        carried = scale if self.clip is None else self.clip.scale
        tensors = self.loss_tensors(context, norms.total.device)
        tensors["total"] = norms.total if carried is None else norms.total / carried
        tensors["each"] = norms.each if carried is None else norms.each / carried
        if context.rates and math.isnan(context.lr):  # the rate is on the device
            tensors["lr"] = self._optimizer.param_groups[0]["lr"]
        if context.step - self._zeros_at >= self._plan.zeros_every and not sharded:
            self._zeros_at = context.step
            tensors["zeros"] = measure_zero_shares(gradients)
        if differing is not None:
            tensors["norms_differ"] = differing
        return tensors

    def loss_tensors(self, context: StepContext, device: torch.device) -> dict[str, Tensor]:
        """Loss, components and loss scale."""
        tensors = self.losses.tensors(device, elsewhere=self._alone)
        scale = self._scaling.scale()
        if scale is not None:
            # A copy: `scaler.update()` changes the scale in place right after the step.
            context.scale = scale.detach().to(device, torch.float32, copy=True)
            tensors["scale"] = context.scale
        return tensors

    def _norms(self, gradients: list[Tensor]) -> GradientNorms:
        if self.clip is not None:
            return self.clip.norms
        plan, fused = self.gradient_plan, None
        if plan.cut_up:
            gradients = [local_values(gradient) for gradient in gradients]
        elif plan.uniform and self.fused_norms.works:
            fused = self.fused_norms.measure(gradients)
            if fused is not None and self.fused_norms.proven:
                return GradientNorms(fused.each, torch.linalg.vector_norm(fused.each, 2.0))
        try:
            norms = measure_norms(gradients, uniform=plan.uniform)
        except (NotImplementedError, RuntimeError):
            plan.forget_layout()
            norms = measure_norms(gradients)
        if fused is not None:
            self._norms_differ = differ(fused.each, norms.each)
        return norms

    def watch_update(self, context: StepContext) -> None:
        """Copy some weights before the update, if this step is sampled."""
        self._copied = context.sampled and not context.held
        if self._copied:
            self._sampler.before(context.parameters)

    # After the step.

    def update_sample(self, context: StepContext) -> sampling.UpdateSample | None:
        """How far the update changed the weights that were copied."""
        copied, self._copied = self._copied, False
        if not copied:
            return None
        if context.held or "scaler_skipped" in context.values:
            self._sampler.cancel()
            return None
        return self._sampler.after()

    def settle_buffers(
        self, context: StepContext, tensors: dict[str, Tensor], bad: Tensor | None
    ) -> None:
        """Keep the buffers after the forward pass, or restore them if the update is skipped.

        `bad`: the verdict of a fused step, still on the device.
        """
        skipped = "scaler_skipped" in context.values
        if bad is not None:
            self._buffers.settle_on_device(bad)
        elif context.held or (skipped and not _finite(tensors.get("loss"))):
            self._buffers.restore()
        else:
            self._buffers.renew()
        if context.sampled:
            norms = sampling.measure_buffer_norms(self._buffers)
            if norms is not None:
                context.buffers, tensors["buffer_norms"] = norms


def _rate(rate: float | Tensor) -> float:
    # A rate on the device is transferred with the other numbers: reading it here would wait.
    return math.nan if isinstance(rate, Tensor) and rate.is_cuda else float(rate)


def _finite(value: Tensor | None) -> bool:
    return value is None or math.isfinite(float(value))


class HostReadings:
    """Measures a step on the host: times, throughput, memory."""

    def __init__(
        self,
        retention: GraphRetention,
        on_memory: Callable[[int, dict[str, float]], None],
        system: SystemSampler | None = None,
    ) -> None:
        """`on_memory` receives each sample of the memory; `system` has read the machine."""
        self._retention = retention
        self._system = system
        self._on_memory = on_memory
        self._began = 0.0
        self._waited: float | None = None
        self._samples = 0
        self._tokens = 0

    def batch_handed(self, waited: float | None, samples: int, tokens: int = 0) -> None:
        """Count a batch of the current step; `waited`: seconds that the loader took."""
        if waited is not None:
            self._waited = (self._waited or 0.0) + waited
        self._samples += samples
        self._tokens += tokens

    def exclude_time(self, seconds: float) -> None:
        """Leave this time out of the duration of the current step."""
        if self._began:
            self._began += seconds

    def read(self, context: StepContext) -> dict[str, float]:
        """The values of a step that is about to be applied."""
        values: dict[str, float] = {}
        if self._began:
            elapsed = context.started - self._began
            values["step_time_s"] = round_digits(elapsed)
            if self._samples:
                values["samples_per_s"] = round_digits(self._samples / max(elapsed, 1e-9))
            if self._tokens:
                values["tokens_per_s"] = round_digits(self._tokens / max(elapsed, 1e-9))
        if self._waited is not None:
            values["loader_wait_s"] = round_digits(self._waited)
        self._began, self._waited, self._samples, self._tokens = context.started, None, 0, 0
        if context.sampled:
            self._add_memory(context, values)
        if self._system is not None:
            values |= self._system.take()
        retained = self._retention.reading()
        if retained is not None:
            values["graphs_kept"] = retained
        return values

    def _add_memory(self, context: StepContext, values: dict[str, float]) -> None:
        resident = sampling.host_rss_bytes()
        if resident is not None:
            values["host_rss_bytes"] = float(resident)
        for parameter in context.parameters[:1]:
            allocated = sampling.device_allocated_bytes(parameter.device)
            if allocated is not None:
                values["device_allocated_bytes"] = float(allocated)
        if not self._retention.many:  # retained graphs explain growth better than allocations do
            self._on_memory(context.step, values)
