"""Tries updates: what the step that was just made does to the loss of its own batch.

At some steps the ops behind the loss are recorded. After the optimizer step, the loss is computed
again along the update. Losses of the steps in between are kept as the background of a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer

from headway.core.facts import LISTED
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.optimizer import optimizer_setup
from headway.preflight.trial.recorded_loss import LossCall, describe_objective, overfit_batch
from headway.preflight.trial.trial_update import (
    BackwardPass,
    UpdateTrial,
    WatchedOptimizer,
    WeightUpdate,
    locate_own_step,
    measure_gradient_norm,
    next_trial_step,
    run_trial,
    sum_scalars,
    take_loss_series,
)
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.op_recording.op_recorder import OpRecorder
from headway.torch_adapters.op_recording.op_replay import CannotReplay, OpReplay
from headway.torch_adapters.op_recording.weight_writes import WeightWrites
from headway.torch_adapters.op_schema import TASK_LOSSES

MOST_WEIGHTS = 200_000_000
"""Weights that are copied for a trial, at most."""
MOST_BACKWARDS = 256
"""Losses of one step that are remembered."""
OBJECTIVES = 3
"""Maximum number of reports on the components of the loss."""
OVERFIT = "overfit"
"""The topic of overfitting one batch."""
LEARNED = 0.1
"""Largest share of the starting loss that may be left of a batch that was learned."""


class UpdateTrials(Observer):
    """Tries the updates of some steps and reports what they did to the loss."""

    functions = find_aliases(*TASK_LOSSES, "kl_div")
    memorise: ClassVar[bool] = False
    """Whether to overfit the batch of the first trial (topic `overfit`)."""

    def start(self) -> None:
        self.tape = OpRecorder()
        self.tape.install()
        self._watched: dict[int, WatchedOptimizer] = {}
        self._made_at: dict[int, Any] = {}
        self._begun_by: set[int] = set()
        """Optimizers that have stepped since the tape began."""
        self._backwards: list[BackwardPass] = []
        self._calls: list[LossCall] = []
        self._call_values: list[Tensor] = []
        self._root_values: list[Tensor] = []
        self._scaled: dict[int, tuple[Tensor, Tensor, float]] = {}
        self._in_step = False
        self._writing: WeightWrites | None = None
        self._clip_norm: float | None = None
        self._said: set[str] = set()
        self._told_once: set[str] = set()
        self._objectives = 0
        self._player: tuple[OpReplay, float, float] | None = None
        self._gradients: dict[int, Tensor] = {}

    # Optimizers.

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._made_at[id(optimizer)] = self.script.place()
        if not self.tape.running and not any(item.steps for item in self._watched.values()):
            self._begin()

    def step_begins(self, optimizer: Optimizer) -> None:
        self._in_step = True
        watched = self._of(optimizer)
        watched.update = None
        if self._backwards and self.tape.running:
            self.tape.pause()
        if not self._wants(watched):
            return
        why = self._declined(optimizer)
        if why is not None:
            self._unavailable(why)
            self.tape.end()
            return
        watched.update = WeightUpdate(optimizer_setup.trainable_parameters(optimizer))
        if (
            self._backwards
            and watched.tried < OBJECTIVES
            and locate_own_step(optimizer) is not None
        ):
            self._writing = WeightWrites(watched.update.parameters, self.script.place)
            self._writing.begin()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._in_step = False
        if self._writing is not None:
            self._writing.end()
            self._report_lost(self._writing)
        watched = self._of(optimizer)
        self._take_losses(watched)
        if watched.update is not None:
            self._try(watched, watched.update)
            watched.update = None
            watched.next_trial = next_trial_step(watched.steps)
        watched.steps += 1
        self._begun_by.add(id(optimizer))
        self._backwards.clear()
        self._scaled.clear()
        self._gradients.clear()
        self._clip_norm = None
        self._writing = None
        self._turn()

    def finished(self) -> None:
        self.tape.uninstall()
        if self._writing is not None:
            self._writing.end()
        tried = any(item.tried for item in self._watched.values())
        if not tried and not self._said:
            self._unavailable("no step changed a weight")
        for watched in self._watched.values():
            if tried and watched.losses:
                self.evidence.record(
                    "trial", {"number": watched.number, **take_loss_series(watched)}
                )

    def _report_lost(self, writing: WeightWrites) -> None:
        lost = list(writing.lost())
        if lost and "lost-write" not in self._told_once:
            self._told_once.add("lost-write")
            names = [self.script.name_of(weight) or "" for weight, _ in lost]
            facts = {"weights": names[:LISTED], "count": len(lost), "place": lost[0][1]}
            self.evidence.record("lost-write", facts)

    # Losses.

    def function_ended(self, call: TorchCall) -> None:
        result = call.result
        if not isinstance(result, Tensor) or result.numel() != 1 or not result.requires_grad:
            return
        if call.name != "kl_div":
            self._call_values = [*self._call_values[-MOST_BACKWARDS:], result.detach()]
        if self.tape.running and self._objectives < OBJECTIVES:
            number = self.tape.number_of(result)
            if number is not None:
                mean = call.kwargs.get("reduction", "mean") in ("mean", "batchmean")
                self._calls.append(
                    LossCall(call.name, number, float(result.detach()), mean, self.script.place())
                )

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        if loss.numel() == 1:
            self._scaled[id(result)] = (result, loss.detach(), float(scaler.get_scale()))

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        scale = 1.0
        for root in roots:
            _, loss, factor = self._scaled.get(id(root), (root, root.detach(), 1.0))
            self._root_values = [*self._root_values[-MOST_BACKWARDS:], loss]
            scale = factor
        if not self.tape.running:
            return
        self.tape.pause()
        if self._backwards and not self._gradients_are_there():
            self._backwards.clear()  # what they gave was thrown away: a scaler skipped their step
        before = len(self.tape.roots)
        if not roots:
            self.tape.give_up("a backward pass began from something other than a loss")
        for root in roots:
            self.tape.add_root(root)
        self._backwards.append(BackwardPass(self.script.place(), self.tape.roots[before:], scale))

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        for root in roots:
            self._scaled.pop(id(root), None)
        if not self._backwards:
            return
        if self.tape.trouble is None:
            self._keep_gradients()
            if not self._in_step:
                self.tape.resume()

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        if self._backwards:
            self._clip_norm = float(total)

    # Inside.

    def _of(self, optimizer: Optimizer) -> WatchedOptimizer:
        found = self._watched.get(id(optimizer))
        if found is None or found.optimizer is not optimizer:
            found = self._watched[id(optimizer)] = WatchedOptimizer(optimizer, len(self._watched))
        return found

    def _begin(self) -> None:
        self._begun_by.clear()
        self._calls.clear()
        self._player = None
        self.tape.begin()

    def _turn(self) -> None:
        """A step was made: go on with the tape, begin a new one, or stop."""
        others = [item for key, item in self._watched.items() if key not in self._begun_by]
        if others and self.tape.trouble is None and self.tape.entries:
            self.tape.resume()  # what the next optimizer steps on may have been made before
            return
        if any(item.steps >= item.next_trial for item in self._watched.values()):
            self._begin()
        else:
            self.tape.end()
            self._player = None

    def _wants(self, watched: WatchedOptimizer) -> bool:
        if watched.steps < watched.next_trial:
            return False
        return bool(self.tape.running or self._backwards or self._player)

    def _declined(self, optimizer: Optimizer) -> str | None:
        parameters = optimizer_setup.trainable_parameters(optimizer)
        if isinstance(optimizer, LBFGS):
            return "LBFGS searches for its own step length"
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return "updates are not tried on several ranks"
        if not all(optimizer_setup.is_plain_parameter(item) for item in parameters):
            return "the weights are not plain tensors of this process alone"
        if sum(item.numel() for item in parameters) > MOST_WEIGHTS:
            return "the model is too large to copy its weights"
        return None

    def _unavailable(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self.evidence.unavailable("trial", f"no update could be tested: {why}")
            if self._objectives == 0:
                self.evidence.unavailable(
                    "objective", f"the loss could not be split into components: {why}"
                )

    def _keep_gradients(self) -> None:
        known = list(self._watched.values())
        optimizers = [item.optimizer for item in known] or list(self.script.optimizers)
        for optimizer in (*optimizers, *self.script.optimizers):
            for parameter in optimizer_setup.trainable_parameters(optimizer):
                if parameter.grad is not None:
                    gradient = parameter.grad.detach()
                    self._gradients[id(parameter)] = (
                        gradient.to_dense() if gradient.is_sparse else gradient.clone()
                    )

    def _gradients_are_there(self) -> bool:
        optimizers = [item.optimizer for item in self._watched.values()] or self.script.optimizers
        for optimizer in optimizers:
            for parameter in optimizer_setup.trainable_parameters(optimizer):
                kept = self._gradients.get(id(parameter))
                if kept is not None and bool((kept != 0).any()):
                    now = parameter.grad
                    return now is not None and (now.is_sparse or bool(torch.equal(now, kept)))
        return False

    def _take_losses(self, watched: WatchedOptimizer) -> None:
        if self._root_values:
            watched.of_step = self._root_values
            watched.tasks += [sum_scalars(self._call_values)] if self._call_values else []
        if watched.of_step:
            watched.losses.append(sum_scalars(watched.of_step))
        for other in self._watched.values():  # they may step on the same losses
            if other is not watched and self._root_values:
                other.of_step = self._root_values
        self._root_values, self._call_values = [], []

    def _try(self, watched: WatchedOptimizer, update: WeightUpdate) -> None:
        if not update.made():
            return
        update.gradients = [self._gradients.get(id(item)) for item in update.parameters]
        try:
            player, scale, recorded = self._played(watched)
            trial = run_trial(player, update, scale, recorded)
            self._report(watched, update, trial, scale)
            if (self.memorise or self.script.overfit) and watched.tried == 1:
                self._memorise(player, update, scale)
            if self._objectives < OBJECTIVES and self._backwards:
                self._objectives += 1
                self._report_objective(update, scale)
        except CannotReplay as why:
            self._unavailable(str(why))
        except (RuntimeError, TypeError, NotImplementedError) as error:  # an op that cannot
            self._unavailable(f"{type(error).__name__}: {error}".splitlines()[0][:200])

    def _played(self, watched: WatchedOptimizer) -> tuple[OpReplay, float, float | None]:
        """The part of the tape that the step was computed from, and its result."""
        if self._backwards:
            roots = [root for backward in self._backwards for root in backward.roots]
            scale = self._backwards[-1].scale
            self._player = None
            player = OpReplay(self.tape, roots)
            recorded = sum(root.value for root in roots) / scale
            self._player = (player, scale, recorded)
            return self._player
        if self._player is None:
            raise CannotReplay(self.tape.trouble or "no backward pass was recorded before it")
        player, scale, _ = self._player  # another optimizer has stepped on the same loss
        return player, scale, None

    def _report(
        self, watched: WatchedOptimizer, update: WeightUpdate, trial: UpdateTrial, scale: float
    ) -> None:
        sizes = update.sizes()
        sizes["gradient_slope"] /= scale
        sizes["gradient_norm"] /= scale
        settings = optimizer_setup.describe_settings(watched.optimizer)
        if (lr := settings.get("lr")) is not None:
            watched.peak = max(watched.peak, abs(lr))
        finite = {f"{at:g}": loss for at, loss in trial.losses.items() if math.isfinite(loss)}
        facts = {
            **settings,
            "number": watched.number,
            "made": watched.steps,
            "loss": trial.start,
            "losses": finite,
            "nonfinite": [at for at, loss in trial.losses.items() if not math.isfinite(loss)],
            "noise": trial.noise,
            "slope": trial.slope,
            "lr_peak": watched.peak,
            "lr_before": watched.last_rate,
            "made_at": self._made_at.get(id(watched.optimizer)),
            "own_step": self._own_line(watched.optimizer),
            "optimizers": len(self._watched),
            "backwards": len(self._backwards),
            "place": self._backwards[-1].place if self._backwards else None,
            "step_place": self.script.place(),
            **sizes,
            **take_loss_series(watched),
        }
        watched.last_rate = lr
        watched.tried += 1
        self.evidence.record("trial", facts)

    def _report_objective(self, update: WeightUpdate, scale: float) -> None:
        with update.put(0.0):
            facts = describe_objective(
                self.tape, [item.roots for item in self._backwards], self._calls, scale
            )
        places = [item.place for item in self._backwards]
        norm = self._clip_norm
        if norm is None:
            norm = measure_gradient_norm(update.parameters)
        raw = math.sqrt(
            sum(float(g.double().pow(2).sum()) for g in update.gradients if g is not None)
        )
        facts |= {
            "optimizers": len(self._watched),
            "optimizer": type(self._current(update)).__name__,
            "one_line": all(place == places[0] for place in places),
            "gradients_kept": norm / (raw / scale) if raw > 0 else None,
            "of_models": all(self.script.name_of(p) is not None for p in update.parameters),
            "maximize": optimizer_setup.describe_settings(self._current(update))["maximize"],
            "place": places[-1],
        }
        self.evidence.record("objective", facts)

    def _own_line(self, optimizer: Optimizer) -> dict[str, Any] | None:
        found: dict[str, Any] | None = None if self._writing is None else self._writing.line
        return found or locate_own_step(optimizer)

    def _memorise(self, player: OpReplay, update: WeightUpdate, scale: float) -> None:
        try:
            with update.put(0.0):
                found = overfit_batch(player, update.parameters)
        except CannotReplay as why:
            self.evidence.unavailable(OVERFIT, f"overfitting one batch could not be tested: {why}")
            return
        facts: dict[str, Any] = {
            "start": found.start / scale,
            "end": found.end / scale,
            "share": found.share,
        }
        facts["learned"] = found.share < LEARNED
        self.evidence.record(OVERFIT, {**facts, "steps": found.steps, "rate": found.rate})

    def _current(self, update: WeightUpdate) -> Optimizer:
        for watched in self._watched.values():
            if watched.update is update:
                return watched.optimizer
        raise CannotReplay("the optimizer no longer exists")
