"""One optimizer's steps: measure the gradients, judge them, hold back or clip, and note the numbers.

Everything between the two hooks of `optimizer.step`. On the CPU, and on CUDA for optimizers that are not
fused, the verdict is read on the host; for fused optimizers on CUDA it never leaves the device before the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.core.bound import LARGEST, Bound, History
from holdfast.live import samples
from holdfast.live.brake import HostBrake, KernelBrake, is_fused_on_cuda
from holdfast.live.closures import SearchState
from holdfast.live.probes import Norms, Plan, count_nonfinite, measure, zero_shares
from holdfast.live.tokens import GradientTokens
from holdfast.live.transfer import DeviceTransfer, HostTransfer, Readings

if TYPE_CHECKING:
    from holdfast.live.session import Session


@dataclass(slots=True)
class Note:
    """What the host knows of a step when it launches it."""

    step: int
    parameters: Sequence[Tensor]
    """Those that had a gradient, in the optimizer's order."""
    lr: float
    started: float
    sampled: bool
    limit: float = LARGEST
    """The bound that was enforced on the norm; on the host known only where it was broken."""
    values: dict[str, float] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    updated: Sequence[Tensor] = ()
    buffers: Sequence[int] = ()
    batches: Sequence[Any] = ()
    rates: Sequence[float] = ()
    nonfinite_counts: tuple[int, int] | None = None
    search_failed: bool = False
    """A line search led to non-finite weights, and was undone."""
    held: bool = False
    """The host held the update back; a fused kernel's own verdict comes with the readings."""


@dataclass(slots=True)
class ClipNote:
    """What was seen when the user clipped: the norms before, and what the gradients were after."""

    norms: Norms
    parameters: Sequence[Tensor]
    scale: Tensor | None
    """The loss scale the gradients still carried."""
    coefficient: Tensor | None = None
    versions: tuple[int, ...] = ()


class OptimizerWatch:
    """Guards the steps of one optimizer."""

    def __init__(self, session: Session, optimizer: Optimizer, number: int, bound: Bound) -> None:
        self.optimizer = optimizer
        self.suffix = f"#{number}" if number else ""
        self.history = History(bound)
        self.tokens = GradientTokens(
            [p for group in optimizer.param_groups for p in group["params"]]
        )
        self.fired = False
        """Whether the pre-hook ran since a GradScaler set out to step."""
        self.inside = False
        """Between the two hooks: backward passes now belong to a line search."""
        self._session = session
        self._losses: list[Tensor] = []
        self._components: dict[str, Tensor] = {}
        self._micro_batches = 0
        self._clip: ClipNote | None = None
        self._brake = HostBrake()
        self._kernel = KernelBrake(optimizer)
        self._plan = Plan()
        self._sampler = samples.UpdateSampler()
        # By the watch's own steps: a generator that steps at odd batches only is sampled too.
        self._sampled_at = -samples.EVERY
        self._zeros_at = -samples.ZEROS_EVERY
        self._note: Note | None = None
        self._tensors: dict[str, Tensor] = {}
        self._bad_on_device: Tensor | None = None
        self._steps = 0
        self._fused = is_fused_on_cuda(optimizer)
        device = self._device()
        self.transfer: HostTransfer | DeviceTransfer = (
            DeviceTransfer(self._deliver, device)
            if device.type == "cuda"
            else HostTransfer(self._deliver)
        )

    # What the seams tell.

    def backward_begins(self) -> None:
        """A backward pass is about to run somewhere."""
        if not self.inside and self.tokens.backward_begins():
            self._forget_losses()

    def backward_ended(self, losses: Sequence[Tensor], components: dict[str, Tensor]) -> None:
        """A backward pass ran; its losses are ours if it reached our gradients."""
        if not self.inside and self.tokens.backward_ended():
            self._losses += losses
            for name, value in components.items():
                known = self._components.get(name)
                self._components[name] = value if known is None else known + value
            self._micro_batches += 1

    def owns(self, parameters: Sequence[Tensor]) -> bool:
        """Whether all of these are this optimizer's."""
        mine = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        return mine.issuperset(map(id, parameters))

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, scale: Tensor | None
    ) -> None:
        """The user is about to clip these parameters' gradients."""
        owned = [p for p in parameters if p.grad is not None]
        if owned and not self.inside:
            gradients = [p.grad for p in owned if p.grad is not None]
            each = norms if norms is not None and len(norms) == len(owned) else None
            self._clip = ClipNote(measure(gradients, each=each), owned, scale)

    def clipped(self, total: Tensor, max_norm: float) -> None:
        """The clipping is done; remember how the gradients were left."""
        if self._clip is not None:
            self._clip.coefficient = torch.clamp(max_norm / (total.detach() + 1e-6), max=1.0)
            self._clip.versions = _versions(self._clip.parameters)

    # Around the step.

    @torch.no_grad()
    def before(self) -> bool:
        """The gradients are there and the step is next. True when it is held back."""
        self.fired = True
        self._bad_on_device = None
        self.transfer.collect()
        parameters, gradients = _with_gradients(self.optimizer)
        if not gradients:
            self._clip = None
            self._session.stepped_without_gradients()
            return False
        note = self._open_note(parameters)
        self._plan.update(parameters, gradients)
        norms, scale = self._norms(parameters, gradients)
        tensors = self._loss_tensors(norms.total.device)
        tensors["total"] = norms.total if scale is None else norms.total / scale
        tensors["each"] = norms.each if scale is None else norms.each / scale
        if note.step - self._zeros_at >= samples.ZEROS_EVERY:
            self._zeros_at = note.step
            tensors["zeros"] = zero_shares(gradients)
        self._note, self._tensors = note, tensors
        if self._fused:
            self._judge_on_device(tensors, scale, note)
        else:
            self._judge_on_host(gradients, tensors, note)
        self._clip = None
        if note.sampled and not note.held:
            self._sampler.before(note.parameters)
        self.inside = True
        self._steps += 1
        return note.held

    @torch.no_grad()
    def after(self, search: SearchState | None = None) -> None:
        """The step was taken, or held back."""
        self.let_go()
        self.tokens.stepped()
        note, tensors = self._note, self._tensors
        self._note, self._tensors = None, {}
        if note is None:
            return
        if search is not None and (note.held or search.went_bad()):
            search.put_back()
            note.search_failed = not note.held
            note.held = True
        self._settle_buffers(note, tensors)
        self._sample_update(note, tensors)
        self._forget_losses()
        self.transfer.send(note, tensors)

    def let_go(self) -> None:
        """Give back gradients and whatever was set on the optimizer."""
        self._brake.release()
        self._kernel.release()
        self.inside = False

    @torch.no_grad()
    def skipped_by_scaler(self) -> None:
        """A GradScaler found an overflow and never called `optimizer.step`."""
        parameters, _ = _with_gradients(self.optimizer)
        note = self._new_note(parameters)
        note.sampled = False
        note.values["scaler_skipped"] = 1.0
        tensors = self._loss_tensors(self._device())
        tensors["total"] = torch.full((), math.inf, device=self._device())
        self._bad_on_device = None
        self._settle_buffers(note, tensors)
        self._clip = None
        self.tokens.stepped()
        self._forget_losses()
        self.transfer.send(note, tensors)

    # Before the step.

    def _open_note(self, parameters: Sequence[Tensor]) -> Note:
        carried = self._steps > 0 and self._micro_batches > 0 and not self.tokens.cleared
        self.tokens.choose(parameters)
        note = self._new_note(parameters)
        if carried:
            note.values["grads_carried"] = 1.0
        return note

    def _new_note(self, parameters: Sequence[Tensor]) -> Note:
        step, started = self._session.begin_step(self)
        groups = self.optimizer.param_groups
        note = Note(
            step=step,
            parameters=parameters,
            lr=float(groups[0]["lr"]) if groups and "lr" in groups[0] else math.nan,
            started=started,
            sampled=step - self._sampled_at >= samples.EVERY,
            components=tuple(self._components),
            batches=self._session.batches_of_step(),
            rates=[float(group["lr"]) for group in groups if "lr" in group],
        )
        if note.sampled:
            self._sampled_at = step
        if self._session.first_of_step(self):
            note.values.update(self._session.host_values(note))
        if self._micro_batches > 1:
            note.values["micro_batches"] = float(self._micro_batches)
        return note

    def _norms(
        self, parameters: Sequence[Tensor], gradients: list[Tensor]
    ) -> tuple[Norms, Tensor | None]:
        """Norms before any clipping, and the loss scale they still carry."""
        scale = getattr(self.optimizer, "grad_scale", None)
        clip = self._clip
        if (
            clip is not None
            and len(clip.parameters) == len(parameters)
            and all(p is q for p, q in zip(clip.parameters, parameters, strict=True))
            and clip.versions == _versions(clip.parameters)
        ):
            return clip.norms, clip.scale if clip.scale is not None else scale
        try:
            return measure(gradients, uniform=self._plan.uniform), scale
        except (NotImplementedError, RuntimeError):
            self._plan.surprise()
            return measure(gradients), scale

    def _loss_tensors(self, device: torch.device) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        if self._losses:
            loss = self._losses[0]
            for more in self._losses[1:]:
                loss = loss + more
            tensors["loss"] = loss.reshape(()).to(device, non_blocking=True)
        if self._components:
            tensors["components"] = torch.stack(
                [value.reshape(()).to(device, torch.float32) for value in self._components.values()]
            )
        scale = self._session.scale_tensor()
        if scale is not None:
            # A copy: `scaler.update()` changes the scale in place right after the step.
            tensors["scale"] = scale.detach().to(device, torch.float32, copy=True)
        return tensors

    def _judge_on_host(
        self, gradients: list[Tensor], tensors: dict[str, Tensor], note: Note
    ) -> None:
        total, loss, theirs = self._read(tensors)
        if theirs:
            note.values["scaler_skipped"] = 1.0  # the kernel skips by itself
            return
        nonfinite = not (math.isfinite(total) and math.isfinite(loss))
        outside = self.history.out_of_bounds(total)
        if outside:
            note.limit = self.history.limit()
        if nonfinite or (outside and self._session.policy.hold_spikes):
            note.held = True
            note.nonfinite_counts = _count_nonfinite(gradients) if nonfinite else None
            self._brake.hold(note.parameters)
            return
        if not note.sampled:
            del tensors["each"]  # nobody will look
        coefficient = self._coefficient(tensors["total"])
        if coefficient is not None:
            tensors["coef"] = coefficient
            if self._session.max_norm is not None:
                _multiply(gradients, coefficient, uniform=self._plan.uniform)

    def _read(self, tensors: dict[str, Tensor]) -> tuple[float, float, float]:
        """Total norm, loss and a GradScaler's verdict, with one wait for the device at most."""
        total, loss = tensors["total"], tensors.get("loss")
        theirs = getattr(self.optimizer, "found_inf", None)
        if total.device.type == "cpu":
            return (
                float(total),
                0.0 if loss is None else float(loss),
                0.0 if theirs is None else float(theirs),
            )
        zero = torch.zeros_like(total)
        parts = [zero if part is None else part.reshape(()).to(zero) for part in (loss, theirs)]
        read: tuple[float, float, float] = tuple(torch.stack([total, *parts]).tolist())
        return read

    def _judge_on_device(
        self, tensors: dict[str, Tensor], scale: Tensor | None, note: Note
    ) -> None:
        total, loss = tensors["total"], tensors.get("loss")
        note.limit = self.history.limit()
        hold_above = note.limit if self._session.policy.hold_spikes else LARGEST
        # loss - loss is 0, or NaN if the loss is not finite; a comparison with NaN is false.
        judged = total if loss is None else total + (loss - loss)
        bad = ~(judged <= hold_above)
        tensors["bad"] = self._bad_on_device = bad
        theirs = getattr(self.optimizer, "found_inf", None)
        if theirs is not None:
            skipped = theirs.to(total.device).reshape(()) > 0
            tensors["scaler_skipped"] = skipped
            # An overflow the scaler deals with says nothing against the forward pass.
            self._bad_on_device = bad & ~skipped
            if loss is not None:
                self._bad_on_device = self._bad_on_device | ~torch.isfinite(loss)
        divisor = scale
        if self._session.max_norm is not None:
            # 1 / the coefficient of clip_grad_norm_, in half the operations
            clip = torch.clamp((total + 1e-6) / self._session.max_norm, min=1.0)
            tensors["clip_divisor"] = clip
            divisor = clip if scale is None else scale * clip
        elif self._clip is not None and self._clip.coefficient is not None:
            tensors["coef"] = self._clip.coefficient
        self._kernel.apply(bad, divisor)

    def _coefficient(self, total: Tensor) -> Tensor | None:
        """The factor of clipping by `max_norm=`, or else of the user's own clipping."""
        if self._session.max_norm is not None:
            return torch.clamp(self._session.max_norm / (total + 1e-6), max=1.0)
        return self._clip.coefficient if self._clip is not None else None

    # After the step.

    def _settle_buffers(self, note: Note, tensors: dict[str, Tensor]) -> None:
        buffers = self._session.buffers
        if self._bad_on_device is not None:
            buffers.settle_on_device(self._bad_on_device)
        elif note.held or ("scaler_skipped" in note.values and not _finite(tensors.get("loss"))):
            buffers.restore()
        else:
            buffers.renew()
        if note.sampled:
            norms = self._session.buffer_norms()
            if norms is not None:
                note.buffers, tensors["buffer_norms"] = norms

    def _sample_update(self, note: Note, tensors: dict[str, Tensor]) -> None:
        if note.held or "scaler_skipped" in note.values:
            self._sampler.cancel()
            return
        sample = self._sampler.after()
        if sample is not None:
            note.updated, tensors["weight_norms"], tensors["update_norms"] = sample

    # When the numbers have arrived.

    def _deliver(self, note: Note, readings: Readings) -> None:
        total = readings["total"][0]
        loss = readings["loss"][0] if "loss" in readings else 0.0
        if readings.get("scaler_skipped", (0.0,))[0]:
            note.values["scaler_skipped"] = 1.0
        skipped = "scaler_skipped" in note.values
        note.held = note.held or skipped or bool(readings.get("bad", (0.0,))[0])
        outside = not total <= note.limit
        if not skipped:
            self.history.admit(total, outside=outside)
        self._session.deliver(
            self,
            note,
            readings,
            nonfinite=note.search_failed or not (math.isfinite(total) and math.isfinite(loss)),
            spike=outside and math.isfinite(total),
        )

    def _forget_losses(self) -> None:
        self._losses, self._components, self._micro_batches = [], {}, 0

    def _device(self) -> torch.device:
        parameters: list[Tensor] = [p for g in self.optimizer.param_groups for p in g["params"]]
        return parameters[0].device if parameters else torch.device("cpu")


def _with_gradients(optimizer: Optimizer) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that have a gradient, and the gradients."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters]
    if any(gradient is None for gradient in gradients):
        parameters = [p for p, g in zip(parameters, gradients, strict=True) if g is not None]
    return parameters, [gradient for gradient in gradients if gradient is not None]


def _versions(parameters: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(-1 if p.grad is None else p.grad._version for p in parameters)


def _count_nonfinite(gradients: Sequence[Tensor]) -> tuple[int, int]:
    """(tensors, elements) that are not finite."""
    counts = [sum(count_nonfinite(gradient)) for gradient in gradients]
    return sum(1 for count in counts if count), sum(counts)


def _multiply(gradients: list[Tensor], coefficient: Tensor, *, uniform: bool) -> None:
    if uniform:
        torch._foreach_mul_(gradients, coefficient)
    else:
        for gradient in gradients:
            gradient.mul_(coefficient.to(gradient.device))


def _finite(value: Tensor | None) -> bool:
    return value is None or math.isfinite(float(value))
