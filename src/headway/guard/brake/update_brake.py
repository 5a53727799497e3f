"""Decides about one optimizer's update: applied, clipped or skipped.

On the CPU, and on CUDA for optimizers that are not fused, the host reads the verdict before the
step. For fused optimizers on CUDA the verdict stays on the device, and the kernel itself skips or
scales the update.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.core.bound import LARGEST, Bound, History
from headway.guard.brake.adaptive_clipper import AdaptiveClipper
from headway.guard.measure.gradient_measure import (
    ClipRecord,
    GradientNorms,
    GradientPlan,
    scale_gradients,
)
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.optimizer_adapter import KernelBrake
from headway.torch_adapters.process_groups.sharded_tensors import local_part
from headway.torch_adapters.step_skipping import HostBrake
from headway.torch_adapters.tensor_values import count_all_nonfinite


class UpdateBrake:
    """Skips or clips the updates of one optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        bound: Bound,
        *,
        hold_spikes: bool,
        max_norm: float | None,
        clipper: AdaptiveClipper | None,
    ) -> None:
        self.history = History(bound)
        """Gradient norms of the run, which bound the next one."""
        self.bad_on_device: Tensor | None = None
        """The verdict on the forward pass of a fused step, still on the device."""
        self.clipper = clipper
        self._optimizer = optimizer
        self._hold_spikes = hold_spikes
        self._max_norm = max_norm
        self._host = HostBrake(optimizer)
        self._kernel = KernelBrake(optimizer)

    def skip(self) -> None:
        """Make the current step change nothing: neither weights nor the optimizer."""
        self._host.skip()

    def release(self) -> None:
        """Restore what was replaced or set on the optimizer for the step."""
        self._host.release()
        self._kernel.release()

    def judge_on_host(
        self,
        context: StepContext,
        gradients: list[Tensor],
        tensors: dict[str, Tensor],
        clip: ClipRecord | None,
        plan: GradientPlan,
        *,
        grouped: bool,
        sharded: bool,
    ) -> bool:
        """Clip the gradients; True when the update must be skipped instead.

        `grouped`: other ranks make the same decision; `sharded`: they hold the other parts of the
        gradients.
        """
        total, loss, overflow, clipped_by, off = self._read(tensors, clip)
        if off:  # the guard of some rank has failed: no rank may act alone
            return False
        if overflow:
            context.values["scaler_skipped"] = 1.0
            return grouped  # the scaler skips by itself, but only on the rank with the overflow
        context.unseen = math.isfinite(total) and not math.isfinite(clipped_by)
        nonfinite = context.unseen or not (math.isfinite(total) and math.isfinite(loss))
        outside = self.history.out_of_bounds(total)
        if outside:
            context.limit = self.history.limit()
        if nonfinite or (outside and self._hold_spikes):
            context.held = True
            if nonfinite and clip is None and not sharded:
                # After clipping NaN is in all gradients; of shards this rank has only a part.
                context.nonfinite_counts = count_all_nonfinite(gradients)
            return True
        each = tensors["each"] if context.sampled else tensors.pop("each")  # not recorded
        if clip is not None and clip.coefficient is not None:
            tensors["coef"] = clip.coefficient
        if plan.cut_up:
            gradients = [local_part(gradient) for gradient in gradients]
        if self._max_norm is not None:
            left = _norm_after(clip, tensors["total"])
            coefficient = torch.clamp(self._max_norm / (left + 1e-6), max=1.0)
            tensors["coef"] = tensors["coef"] * coefficient if "coef" in tensors else coefficient
            scale_gradients(gradients, coefficient, uniform=plan.uniform)
        elif self.clipper is not None:
            norms = GradientNorms(each, tensors["total"])
            tensors |= self.clipper.on_host(context, gradients, norms, clip, uniform=plan.uniform)
        return False

    def judge_on_device(
        self,
        context: StepContext,
        tensors: dict[str, Tensor],
        scale: Tensor | None,
        clip: ClipRecord | None,
        *,
        grouped: bool,
    ) -> None:
        """Let the fused kernel skip or scale the update, without a wait for the device."""
        total, loss = tensors["total"], tensors.get("loss")
        context.limit = self.history.limit()
        hold_above = context.limit if self._hold_spikes else LARGEST
        # loss - loss is 0, or NaN if the loss is not finite; a comparison with NaN is false.
        judged = total if loss is None else total + (loss - loss)
        clipped_by = None if clip is None else clip.coefficient
        if clipped_by is not None:
            judged = judged + (clipped_by - clipped_by)
        bad = ~(judged <= hold_above)
        off = tensors.get("off")
        if off is not None:  # the guard of some rank has failed: no rank may act alone
            bad = bad & ~off
        tensors["bad"] = self.bad_on_device = held = bad
        overflow = self._overflow(tensors)
        if overflow is not None:
            skipped = overflow.to(total.device).reshape(()) > 0
            tensors["scaler_skipped"] = skipped
            if grouped:  # the overflow may be on another rank
                held = bad | skipped
            # An overflow that the scaler handles says nothing against the forward pass.
            self.bad_on_device = bad & ~skipped
            if loss is not None:
                self.bad_on_device = self.bad_on_device | ~torch.isfinite(loss)
        divisor = scale
        if self._max_norm is not None:
            # 1 / the coefficient of clip_grad_norm_, in half the operations
            factor = torch.clamp((_norm_after(clip, total) + 1e-6) / self._max_norm, min=1.0)
            if off is not None:
                factor = torch.where(off, 1.0, factor)
            tensors["clip_divisor"] = factor if clipped_by is None else factor / clipped_by
            divisor = factor if scale is None else scale * factor
        elif self.clipper is not None:
            norms, unlearned = GradientNorms(tensors["each"], total), tensors.get("scaler_skipped")
            unlearned = bad if unlearned is None else bad | unlearned
            divisor, numbers = self.clipper.on_device(context, scale, norms, clip, bad=unlearned)
            tensors |= numbers
        elif clipped_by is not None:
            tensors["coef"] = clipped_by
        self._kernel.apply(held, divisor)

    def _read(
        self, tensors: dict[str, Tensor], clip: ClipRecord | None
    ) -> tuple[float, float, float, float, float]:
        """Norm, loss, a GradScaler's verdict, the user's clipping and whether the guard of a rank
        is off, with at most one wait for the device."""
        total = tensors["total"]
        clipped_by = None if clip is None else clip.coefficient
        parts = (tensors.get("loss"), self._overflow(tensors), clipped_by, tensors.get("off"))
        if total.device.type == "cpu":
            host = [0.0 if part is None else float(part) for part in parts]
        else:
            zero = torch.zeros_like(total)
            on_device = [zero if part is None else part.reshape(()).to(zero) for part in parts]
            total, *host = torch.stack([total, *on_device]).tolist()
        return float(total), *host  # type: ignore[return-value]

    def _overflow(self, tensors: dict[str, Tensor]) -> Tensor | None:
        """Whether a GradScaler found an overflow on this rank, or on any rank."""
        found: Tensor | None = tensors.get("skip", getattr(self._optimizer, "found_inf", None))
        return found


def _norm_after(clip: ClipRecord | None, total: Tensor) -> Tensor:
    """The norm after the user's own clipping, if there was one."""
    return total if clip is None or clip.coefficient is None else total * clip.coefficient
