"""Questions asked of a recorded loss: what it is made of, and whether one batch can be
overfitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.torch_adapters.modes import no_autocast, no_function_modes
from headway.torch_adapters.op_recording.op_recorder import OpRecorder
from headway.torch_adapters.op_recording.op_replay import (
    CannotReplay,
    DifferentiableReplay,
    OpReplay,
)
from headway.torch_adapters.op_recording.recorded_ops import ParameterRef, RecordedOp, RecordedRoot
from headway.torch_adapters.tensor_values import storage_address

# What a loss is made of: the weight of each mean on the way to it.

# Each one is changed a little while the tape is played; what becomes of the total tells its
# weight, whether it was divided, negated or scheduled in Python or by a framework.

MOST_PARTS = 6
"""Means that are looked at, the last ones of a loss first."""


@dataclass(slots=True)
class LossCall:
    """A loss function of torch's that was called."""

    name: str
    number: int
    value: float
    mean: bool
    place: dict[str, Any] | None


def describe_objective(
    tape: OpRecorder,
    backwards: Sequence[Sequence[RecordedRoot]],
    calls: Sequence[LossCall],
    scale: float,
) -> dict[str, Any]:
    """Facts about the backward passes of a step. Raises CannotPlay where there are none."""
    players = [OpReplay(tape, roots) for roots in backwards if roots]
    shapes = {_shape(player) for player in players}
    weights = {frozenset(_weights(player)) for player in players}
    first = players[0]
    return {
        "backwards": len(backwards),
        "same_ops": len(shapes) == 1,
        "same_weights": len(weights) == 1,
        "same_data": len({_data(player) for player in players}) < len(players),
        "root": sum(root.value for root in first.roots) / scale,
        "parts": _parts(first, calls, scale),
        "divided": _is_divided(first, {call.number for call in calls}, len(backwards)),
    }


def _is_divided(player: OpReplay, losses: set[int], count: int) -> bool:
    """Whether anything after the last of these losses is multiplied or divided by this count."""
    entries = [entry for _, entry in player.program if isinstance(entry, RecordedOp)]
    made = [at for at, entry in enumerate(entries) if {each[1] for each in entry.makes} & losses]
    for entry in entries[max(made, default=-1) + 1 :]:
        if entry.size == 1:
            for number in (*entry.args, *entry.kwargs.values()):
                if not isinstance(number, (int, float)) or isinstance(number, bool) or not number:
                    continue
                if any(math.isclose(abs(number), one, rel_tol=0.01) for one in (count, 1 / count)):
                    return True
    return False


def _parts(player: OpReplay, calls: Sequence[LossCall], scale: float) -> list[dict[str, Any]]:
    start = sum(player.play())
    made = {
        number
        for _, entry in player.program
        if isinstance(entry, RecordedOp)
        for _, number, _ in entry.makes
    }
    named = {call.number: call for call in calls if call.number in made}
    found = []
    for number in list(named)[-MOST_PARTS:]:
        call = named[number]
        weight = _weight(player, number, call.value, start) / scale
        found.append(
            {
                "name": call.name,
                "value": call.value,
                "weight": weight,
                "mean": call.mean,
                "known": True,
                "place": call.place,
            }
        )
    if found:
        return found
    means = [
        (entry.makes[0][1], str(entry.func))
        for _, entry in player.program
        if isinstance(entry, RecordedOp) and entry.mean and entry.size == 1 and entry.makes
    ]
    for number, name in means[-MOST_PARTS:]:
        value = _value(player, number)
        weight = _weight(player, number, value, start) / scale
        part = {"name": name, "value": value, "weight": weight, "mean": True, "known": False}
        found.append(part)
    return found


def _weight(player: OpReplay, number: int, value: float, start: float) -> float:
    step = 0.01 * max(abs(value), 1e-3)
    return (sum(player.play({number: lambda tensor: tensor + step})) - start) / step


def _value(player: OpReplay, number: int) -> float:
    seen: list[float] = []

    def look(tensor: Tensor) -> Tensor:
        seen.append(float(tensor))
        return tensor

    player.play({number: look})
    return seen[-1] if seen else 0.0


def _shape(player: OpReplay) -> tuple[str, ...]:
    return tuple(str(entry.func) for _, entry in player.program if isinstance(entry, RecordedOp))


def _weights(player: OpReplay) -> set[int]:
    found: set[int] = set()
    for _, entry in player.program:
        if isinstance(entry, RecordedOp):
            _collect((entry.args, entry.kwargs), found)
    return found


def _collect(value: Any, found: set[int]) -> None:
    if isinstance(value, ParameterRef):
        found.add(storage_address(value.tensor))
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        _collect(list(value.values()), found)


def _data(player: OpReplay) -> tuple[float, ...]:
    """The losses themselves: two passes over the same batch have the same."""
    return tuple(root.value for root in player.roots)


# Tests whether one batch can be overfitted: a recorded step on copies of its weights.

# A model that cannot even memorise one batch is not kept from learning by its data. The tape of
# the step is played with gradients, and a plain Adam steps on copies; the user's weights stay.

OVERFIT_STEPS = 100
OVERFIT_RATES = (1e-2, 1e-3)
"""Rates that are tried, the best of which counts."""


@dataclass(frozen=True, slots=True)
class OverfitResult:
    """Its outcome."""

    start: float
    end: float
    steps: int
    rate: float

    @property
    def share(self) -> float:
        """How much of the loss is left; above 1 where it grew."""
        return self.end / self.start if self.start > 0 else math.inf


def overfit_batch(
    player: OpReplay,
    weights: Sequence[Tensor],
    *,
    steps: int = OVERFIT_STEPS,
    rates: Sequence[float] = OVERFIT_RATES,
) -> OverfitResult:
    """Overfit the batch of a tape, on copies. Raises CannotReplay if it cannot be replayed."""
    if player.draws:
        raise CannotReplay("its ops draw random numbers")
    best: OverfitResult | None = None
    for rate in rates:
        try:
            found = _overfit_copies(player, weights, steps, rate)
        except (RuntimeError, StopIteration) as error:  # in-place ops that autograd cannot follow
            raise CannotReplay(str(error).splitlines()[0] or type(error).__name__) from error
        if best is None or found.end < best.end:
            best = found
    assert best is not None
    return best


def _overfit_copies(
    player: OpReplay, weights: Sequence[Tensor], steps: int, rate: float
) -> OverfitResult:
    copies = [weight.detach().clone(memory_format=torch.preserve_format) for weight in weights]
    for copy in copies:
        copy.requires_grad_()
    by_memory = {
        storage_address(weight): copy for weight, copy in zip(weights, copies, strict=True)
    }
    optimizer = _Adam(copies, rate)
    losses: list[float] = []
    with torch.enable_grad(), no_function_modes(), no_autocast():
        for _ in range(steps + 1):
            total = DifferentiableReplay(player, by_memory).loss()
            losses.append(float(total.detach()))
            if not math.isfinite(losses[-1]) or not total.requires_grad:
                break
            optimizer.step(torch.autograd.grad(total, copies, allow_unused=True))
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        raise CannotReplay("the loss is not finite")
    return OverfitResult(losses[0], min(finite), len(losses) - 1, rate)


class _Adam:
    """Written out: a torch optimizer would be heard by everybody who watches the script."""

    def __init__(self, weights: Sequence[Tensor], rate: float) -> None:
        self._weights, self._rate, self._count = weights, rate, 0
        self._means = [torch.zeros_like(weight) for weight in weights]
        self._squares = [torch.zeros_like(weight) for weight in weights]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        self._count += 1
        for weight, gradient, mean, square in zip(
            self._weights, gradients, self._means, self._squares, strict=True
        ):
            if gradient is None:
                continue
            mean.lerp_(gradient, 0.1)
            square.lerp_(gradient * gradient, 0.001)
            size = (square / (1 - 0.999**self._count)).sqrt_().add_(1e-8)
            weight.addcdiv_(mean, size, value=-self._rate / (1 - 0.9**self._count))
