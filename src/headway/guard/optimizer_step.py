"""One optimizer's steps: measures the gradients, judges them, skips or clips, and records the
numbers.

Everything between the two hooks of `optimizer.step`. On the CPU, and on CUDA for optimizers that
are not fused, the verdict is read on the host; for fused optimizers on CUDA it never leaves the
device before the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.core.bound import LARGEST, Bound, History
from headway.core.state import decode, encode
from headway.guard.brake.adaptive_clipper import RateFactor
from headway.guard.measure import sampling
from headway.guard.measure.gradient_measure import (
    ClipRecord,
    ClipTracker,
    GradientFreshness,
    GradientNorms,
    GradientPlan,
    collect_gradients,
    measure_norms,
    measure_zero_shares,
    scale_gradients,
)
from headway.guard.measure.step_record import DeviceTransfer, HostTransfer, Readings
from headway.guard.ranks.rank_table import RankField
from headway.guard.ranks.rank_vote import RankReport, StepVote
from headway.rerun.bad_step import StepContext
from headway.torch_adapters.nonfinite_scan import count_all_nonfinite
from headway.torch_adapters.optimizer_adapter import (
    HostBrake,
    KernelBrake,
    LineSearchState,
    is_fused_on_cuda,
)
from headway.torch_adapters.sharded_tensors import local_part, local_values

if TYPE_CHECKING:
    from headway.guard.session import Session

MOST_ELSEWHERE = 16
"""Losses of a step that reached no gradient of ours, and are remembered all the same."""


class OptimizerStep:
    """Guards the steps of one optimizer."""

    def __init__(self, session: Session, optimizer: Optimizer, number: int, bound: Bound) -> None:
        self.optimizer = optimizer
        self.suffix = f"#{number}" if number else ""
        self.history = History(bound)
        self.tokens = GradientFreshness(
            [p for group in optimizer.param_groups for p in group["params"]]
        )
        self.fired = False
        """Whether the pre-hook ran since a GradScaler set out to step."""
        self.inside = False
        """Between the two hooks: backward passes now belong to a line search."""
        policy = session.policy
        self.rate = RateFactor(optimizer, policy.back_off_steps, policy.rewarm_steps)
        self._session = session
        self._losses: list[Tensor] = []
        self._elsewhere: list[Tensor] = []
        """Of backward passes that reached gradients of others: fp16 copies of our masters, say."""
        self._components: dict[str, Tensor] = {}
        self._micro_batches = 0
        self._clips = ClipTracker()
        self._clip: ClipRecord | None = None
        self._adaptive = session.clip.attach(optimizer)
        self._brake = HostBrake()
        self._kernel = KernelBrake(optimizer)
        self._plan = GradientPlan()
        self._rhythm = session.rhythm
        self._sampler = sampling.UpdateSampler(
            self._rhythm.most_tensors, self._rhythm.most_elements
        )
        # By the watch's own steps: a generator that steps at odd batches only is sampled too.
        self._sampled_at = -self._rhythm.every
        self._zeros_at = -self._rhythm.zeros_every
        self._note: StepContext | None = None
        self._tensors: dict[str, Tensor] = {}
        self._bad_on_device: Tensor | None = None
        self._unheard: tuple[StepContext, dict[str, Tensor]] | None = None
        """The last step with other ranks, until its numbers are here."""
        self._steps = 0
        self._fused = is_fused_on_cuda(optimizer)
        device = self._device()
        self.transfer: HostTransfer | DeviceTransfer = (
            DeviceTransfer(self._deliver, device)
            if device.type == "cuda"
            else HostTransfer(self._deliver)
        )
        self.vote = session.vote_for(optimizer, self.transfer.lag)
        """This optimizer's part in the agreement of the ranks; None for one that trains alone."""

    # What the seams tell.

    def backward_begins(self) -> None:
        """A backward pass is about to run somewhere."""
        if not self.inside and self.tokens.backward_begins():
            self._forget_losses()
            if self.vote is not None:
                self.vote.gradients_cleared()

    def backward_ended(self, losses: Sequence[Tensor], components: dict[str, Tensor]) -> None:
        """A backward pass ran; its losses are ours if it reached our gradients."""
        if not self.inside and self.tokens.backward_ended():
            self._losses += losses
            for name, value in components.items():
                known = self._components.get(name)
                self._components[name] = value if known is None else known + value
            self._micro_batches += 1
            self._clips.forget()
        elif not self.inside and len(self._elsewhere) < MOST_ELSEWHERE:
            self._elsewhere += losses

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, scale: Tensor | None
    ) -> None:
        """The user is about to clip these gradients, of which all, some or none may be ours."""
        if self.inside:
            return
        mine = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not mine.issuperset(map(id, parameters)):
            ours = [at for at, p in enumerate(parameters) if id(p) in mine]
            parameters = [parameters[at] for at in ours]
            norms = None if norms is None else [norms[at] for at in ours]
        if parameters:
            self._clips.begin(parameters, norms, scale)

    def clipped(self, total: Tensor, max_norm: float) -> None:
        """The clipping is done; remember how the gradients were left."""
        self._clips.end(total, max_norm)
        self.tokens.look()

    # Around the step.

    @torch.no_grad()
    def before(self) -> bool:
        """The gradients are there and the step is next. True when it is held back."""
        self.fired = True
        self._bad_on_device = None
        self.transfer.collect()
        if self.vote is not None and self.vote.ranks.off:
            return False
        parameters, gradients = collect_gradients(self.optimizer)
        if not gradients:
            self._clips.forget()
            self._session.stepped_without_gradients()
            if self.vote is not None:
                self._take_part_idly(self.vote)
            return False
        scale: Tensor | None = getattr(self.optimizer, "grad_scale", None)
        self._clip = self._clips.recall(parameters, scale)
        if self._clip is not None:
            parameters = list(self._clip.parameters)
            gradients = [p.grad for p in parameters if p.grad is not None]
        self.rate.apply()
        note = self._open_note(parameters)
        self._plan.update(parameters, gradients)
        norms = self._norms(gradients)
        carried = scale if self._clip is None else self._clip.scale
        tensors = self._loss_tensors(norms.total.device)
        note.scale = tensors.get("scale")
        tensors["total"] = norms.total if carried is None else norms.total / carried
        tensors["each"] = norms.each if carried is None else norms.each / carried
        if note.rates and math.isnan(note.lr):
            tensors["lr"] = self.optimizer.param_groups[0]["lr"]
        if note.step - self._zeros_at >= self._rhythm.zeros_every and not self._cut_up():
            self._zeros_at = note.step
            tensors["zeros"] = measure_zero_shares(gradients)
        self._note, self._tensors = note, tensors
        if self.vote is not None:
            self._agree(self.vote, note, tensors)
        if self._fused:
            self._judge_on_device(tensors, scale, note)
        else:
            self._judge_on_host(gradients, tensors, note)
        if self.vote is not None and self.transfer.lag:
            self._unheard = note, tensors
        self._clips.forget()
        if note.sampled and not note.held:
            self._sampler.before(note.parameters)
        self.inside = True
        self._steps += 1
        return note.held

    @torch.no_grad()
    def after(self, search: LineSearchState | None = None) -> None:
        """The step was taken, or held back."""
        self.let_go()
        self.tokens.stepped()
        note, tensors = self._note, self._tensors
        self._note, self._tensors = None, {}
        if note is None:
            return
        if search is not None and (note.held or search.went_bad()):
            search.put_back()
            if self._adaptive is not None and not note.held:
                self._adaptive.undo()
            note.unseen = not note.held
            note.held = True
        self._settle_buffers(note, tensors)
        self._sample_update(note, tensors)
        self._forget_losses()
        self.transfer.send(note, tensors)
        if note.held and note.iteration is not None:
            self.transfer.flush()  # while the loop is where it went bad

    def foresee(self) -> None:
        """Whatever has failed: what the other ranks learn of the last step only now."""
        unheard, self._unheard = self._unheard, None
        if unheard is None:
            return
        note, tensors = unheard
        held = [tensors[name] for name in ("bad", "scaler_skipped") if name in tensors]
        again = not float(tensors["calls"][RankField.ONCE_ONLY - RankField.LEAVE])
        if again and (note.held or any(map(bool, held))):
            self._session.incidents.foresee(note)

    def hold(self) -> None:
        """Hold the step back whatever has failed: all ranks agreed to."""
        self._brake.hold([p for group in self.optimizer.param_groups for p in group["params"]])

    def let_go(self) -> None:
        """Give back gradients and whatever was set on the optimizer."""
        self._brake.release()
        self._kernel.release()
        held = self._note is not None and self._note.held
        self.rate.remove(stepped=self.inside and not held)
        self.inside = False

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume."""
        return {
            "history": encode(self.history),
            "rate": self.rate.state_dict(),
            "steps": self._steps,
            "sampled_at": self._sampled_at,
            "zeros_at": self._zeros_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = decode(state["history"])
        self.rate.load_state_dict(state["rate"])
        self._steps = state["steps"]
        self._sampled_at, self._zeros_at = state["sampled_at"], state["zeros_at"]

    @torch.no_grad()
    def skipped_by_scaler(self) -> None:
        """A GradScaler found an overflow and never called `optimizer.step`."""
        self.transfer.collect()
        if self.vote is not None and self.vote.ranks.off:
            return
        parameters, _ = collect_gradients(self.optimizer)
        note = self._new_note(parameters)
        note.sampled = False
        note.values["scaler_skipped"] = 1.0
        tensors = self._loss_tensors(self._device())
        note.scale = tensors.get("scale")
        tensors["total"] = torch.full((), math.inf, device=self._device())
        if self.vote is not None:
            say = RankReport(
                note.step, note.started, skipped=torch.ones(()), once_only=not note.again
            )
            self.vote.cast(say, tensors, self, ())
            tensors["total"] = torch.full_like(tensors["total"], math.inf)
        self._bad_on_device = None
        self._settle_buffers(note, tensors)
        self._clips.forget()
        self.tokens.stepped()
        self._forget_losses()
        self.transfer.send(note, tensors)

    # Before the step.

    def _open_note(self, parameters: Sequence[Tensor]) -> StepContext:
        carried = self._steps > 0 and self._micro_batches > 0 and not self.tokens.cleared
        self.tokens.choose(parameters)
        note = self._new_note(parameters)
        if carried:
            note.values["grads_carried"] = 1.0
        return note

    def _new_note(self, parameters: Sequence[Tensor]) -> StepContext:
        step, started = self._session.begin_step(self)
        rates = [_rate(group["lr"]) for group in self.optimizer.param_groups if "lr" in group]
        note = StepContext(
            step=step,
            parameters=parameters,
            lr=rates[0] if rates else math.nan,
            started=started,
            sampled=step - self._sampled_at >= self._rhythm.every,
            components=tuple(self._components),
            batches=self._session.batches_of_step(),
            before=self._session.incidents.moment,
            iteration=self._session.turns.present,
            rates=rates,
        )
        known = note.before is not None and bool(note.batches)
        note.again = known or note.iteration is not None
        if note.sampled:
            self._sampled_at = step
        if self._session.first_of_step(self):
            note.values.update(self._session.host_values(note))
        if self._micro_batches > 1:
            note.values["micro_batches"] = float(self._micro_batches)
        return note

    def _norms(self, gradients: list[Tensor]) -> GradientNorms:
        """Norms before any clipping."""
        if self._clip is not None:
            return self._clip.norms
        if self._plan.cut_up:
            gradients = [local_values(gradient) for gradient in gradients]
        try:
            return measure_norms(gradients, uniform=self._plan.uniform)
        except (NotImplementedError, RuntimeError):
            self._plan.surprise()
            return measure_norms(gradients)

    def _loss_tensors(self, device: torch.device) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        alone = len(self._session.watches) == 1
        losses = self._losses or (self._elsewhere if alone else [])
        if losses:
            loss = losses[0]
            for more in losses[1:]:
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
        self, gradients: list[Tensor], tensors: dict[str, Tensor], note: StepContext
    ) -> None:
        total, loss, theirs, clip, off = self._read(tensors)
        if off:  # some rank's guard has failed: nobody may act alone
            return
        if theirs:
            note.values["scaler_skipped"] = 1.0  # the kernel skips by itself
            if self.vote is not None:  # but only where the overflow is
                self._hold(note, tensors)
            return
        note.unseen = math.isfinite(total) and not math.isfinite(clip)
        nonfinite = note.unseen or not (math.isfinite(total) and math.isfinite(loss))
        outside = self.history.out_of_bounds(total)
        if outside:
            note.limit = self.history.limit()
        if nonfinite or (outside and self._session.policy.hold_spikes):
            note.held = True
            if nonfinite and self._clip is None and not self._cut_up():
                # Clipping spreads them over all gradients; of pieces, this rank has not all.
                note.nonfinite_counts = count_all_nonfinite(gradients)
            self._hold(note, tensors)
            return
        each = tensors["each"] if note.sampled else tensors.pop("each")  # nobody will look
        if self._clip is not None and self._clip.coefficient is not None:
            tensors["coef"] = self._clip.coefficient
        if self._plan.cut_up:
            gradients = [local_part(gradient) for gradient in gradients]
        if self._session.max_norm is not None:
            left = self._left(tensors["total"])
            coefficient = torch.clamp(self._session.max_norm / (left + 1e-6), max=1.0)
            tensors["coef"] = tensors["coef"] * coefficient if "coef" in tensors else coefficient
            scale_gradients(gradients, coefficient, uniform=self._plan.uniform)
        elif self._adaptive is not None:
            norms, uniform = GradientNorms(each, tensors["total"]), self._plan.uniform
            tensors |= self._adaptive.on_host(note, gradients, norms, self._clip, uniform=uniform)

    def _hold(self, note: StepContext, tensors: dict[str, Tensor]) -> None:
        if self.vote is not None:
            self.vote.hold_agreed = True
            if not self.transfer.lag and not float(
                tensors["calls"][RankField.ONCE_ONLY - RankField.LEAVE]
            ):
                self._session.incidents.foresee(note)
        self._brake.hold(note.parameters)

    def _read(self, tensors: dict[str, Tensor]) -> tuple[float, float, float, float, float]:
        """Norm, loss, a GradScaler's verdict, the user's clipping and whether a rank's guard is
        off, with one wait at most."""
        total = tensors["total"]
        clip = None if self._clip is None else self._clip.coefficient
        parts = (tensors.get("loss"), self._scalers_verdict(tensors), clip, tensors.get("off"))
        if total.device.type == "cpu":
            host = [0.0 if part is None else float(part) for part in parts]
        else:
            zero = torch.zeros_like(total)
            on_device = [zero if part is None else part.reshape(()).to(zero) for part in parts]
            total, *host = torch.stack([total, *on_device]).tolist()
        return float(total), *host  # type: ignore[return-value]

    def _scalers_verdict(self, tensors: dict[str, Tensor]) -> Tensor | None:
        """What a GradScaler found here, or on any rank."""
        found: Tensor | None = tensors.get("skip", getattr(self.optimizer, "found_inf", None))
        return found

    def _judge_on_device(
        self, tensors: dict[str, Tensor], scale: Tensor | None, note: StepContext
    ) -> None:
        total, loss = tensors["total"], tensors.get("loss")
        note.limit = self.history.limit()
        hold_above = note.limit if self._session.policy.hold_spikes else LARGEST
        # loss - loss is 0, or NaN if the loss is not finite; a comparison with NaN is false.
        judged = total if loss is None else total + (loss - loss)
        theirs_too = None if self._clip is None else self._clip.coefficient
        if theirs_too is not None:
            judged = judged + (theirs_too - theirs_too)
        bad = ~(judged <= hold_above)
        off = tensors.get("off")
        if off is not None:  # some rank's guard has failed: nobody may act alone
            bad = bad & ~off
        tensors["bad"] = self._bad_on_device = held = bad
        theirs = self._scalers_verdict(tensors)
        if theirs is not None:
            skipped = theirs.to(total.device).reshape(()) > 0
            tensors["scaler_skipped"] = skipped
            if self.vote is not None:  # the overflow may be another rank's
                held = bad | skipped
            # An overflow the scaler deals with says nothing against the forward pass.
            self._bad_on_device = bad & ~skipped
            if loss is not None:
                self._bad_on_device = self._bad_on_device | ~torch.isfinite(loss)
        divisor = scale
        if self._session.max_norm is not None:
            # 1 / the coefficient of clip_grad_norm_, in half the operations
            clip = torch.clamp((self._left(total) + 1e-6) / self._session.max_norm, min=1.0)
            if off is not None:
                clip = torch.where(off, 1.0, clip)
            tensors["clip_divisor"] = clip if theirs_too is None else clip / theirs_too
            divisor = clip if scale is None else scale * clip
        elif self._adaptive is not None:
            norms, unlearned = GradientNorms(tensors["each"], total), tensors.get("scaler_skipped")
            unlearned = bad if unlearned is None else bad | unlearned
            divisor, numbers = self._adaptive.on_device(
                note, scale, norms, self._clip, bad=unlearned
            )
            tensors |= numbers
        elif theirs_too is not None:
            tensors["coef"] = theirs_too
        self._kernel.apply(held, divisor)

    def _left(self, total: Tensor) -> Tensor:
        """The norm that the user's own clipping, if any, has left."""
        clip = self._clip
        return total if clip is None or clip.coefficient is None else total * clip.coefficient

    # Together with the other ranks.

    def _agree(self, ballot: StepVote, note: StepContext, tensors: dict[str, Tensor]) -> None:
        """From here on the numbers are those of all ranks."""
        clip = self._clip
        say = RankReport(
            note.step,
            note.started,
            skipped=getattr(self.optimizer, "found_inf", None),
            clip=None if clip is None else clip.total,
            doubt=None if clip is None else clip.coefficient,
            sampled=note.sampled,
            batches=note.batches,
            once_only=not note.again,
        )
        update = ballot.cast(say, tensors, self._plan.key, note.parameters)
        if update is not None:
            note.updated, tensors["weight_norms"], tensors["update_norms"] = update

    def _take_part_idly(self, ballot: StepVote) -> None:
        """Nothing to step here; other ranks may have something, and wait for this one's say."""
        note = self._new_note(())
        note.sampled, note.limit = False, self.history.limit()
        tensors = self._loss_tensors(self._device())
        tensors["total"] = torch.zeros((), device=self._device())
        say = RankReport(note.step, note.started, idle=True, once_only=not note.again)
        ballot.cast(say, tensors, self, ())
        self._note, self._tensors = note, tensors

    def _cut_up(self) -> bool:
        return self.vote is not None and self.vote.sharded

    # After the step.

    def _settle_buffers(self, note: StepContext, tensors: dict[str, Tensor]) -> None:
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

    def _sample_update(self, note: StepContext, tensors: dict[str, Tensor]) -> None:
        if note.held or "scaler_skipped" in note.values:
            self._sampler.cancel()
            return
        sample = self._sampler.after()
        if sample is not None and not (self.vote and self.vote.keep_update(sample)):
            note.updated, tensors["weight_norms"], tensors["update_norms"] = sample

    # When the numbers have arrived.

    def _deliver(self, note: StepContext, readings: Readings) -> None:
        total = readings["total"][0]
        loss = readings["loss"][0] if "loss" in readings else 0.0
        tally = None
        if self.vote is not None:
            tally = self.vote.delivered(readings["calls"], readings.get("ranks"))
            if self.vote.ranks.off or tally.count(RankField.IDLE) == self.vote.ranks.size:
                return
            note.again = tally.count(RankField.ONCE_ONLY) == 0
        if readings.get("scaler_skipped", (0.0,))[0]:
            note.values["scaler_skipped"] = 1.0
        skipped = "scaler_skipped" in note.values
        note.held = note.held or skipped or bool(readings.get("bad", (0.0,))[0])
        self._unheard = None
        if note.held and note.again:
            self._session.incidents.foresee(note)
        if not math.isfinite(readings.get("coef", (1.0,))[0]):
            note.unseen = True
        outside = not total <= note.limit
        if not skipped:
            self.history.admit(total, outside=outside)
        self._session.deliver(
            self,
            note,
            readings,
            nonfinite=note.unseen or not (math.isfinite(total) and math.isfinite(loss)),
            spike=outside and math.isfinite(total),
            tally=tally,
        )

    def _forget_losses(self) -> None:
        self._losses, self._components, self._micro_batches = [], {}, 0
        self._elsewhere = []

    def _device(self) -> torch.device:
        parameters: list[Tensor] = [p for g in self.optimizer.param_groups for p in g["params"]]
        return parameters[0].device if parameters else torch.device("cpu")


def _rate(rate: float | Tensor) -> float:
    # A rate kept on the device travels with the other numbers: reading it here would wait for it.
    return math.nan if isinstance(rate, Tensor) and rate.is_cuda else float(rate)


def _finite(value: Tensor | None) -> bool:
    return value is None or math.isfinite(float(value))
