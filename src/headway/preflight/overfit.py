"""Can one batch be learned by heart? Asked of a recorded step, on copies of its weights.

A model that cannot even memorise one batch is not kept from learning by its data. The tape of the
step is played with gradients, and a plain Adam steps on copies; the user's weights stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.preflight.playing import CannotPlay, Player
from headway.preflight.taped import Begin, Held, Op, View, Weight

STEPS = 100
RATES = (1e-2, 1e-3)
"""Rates that are tried, the best of which counts."""


@dataclass(frozen=True, slots=True)
class Overfit:
    """What came of it."""

    start: float
    end: float
    steps: int
    rate: float

    @property
    def share(self) -> float:
        """How much of the loss is left; above 1 where it grew."""
        return self.end / self.start if self.start > 0 else math.inf


def overfit(
    player: Player,
    weights: Sequence[Tensor],
    *,
    steps: int = STEPS,
    rates: Sequence[float] = RATES,
) -> Overfit:
    """Learn the batch of a tape by heart, on copies. Raises CannotPlay where it cannot be done."""
    if player.draws:
        raise CannotPlay("its ops draw random numbers")
    best: Overfit | None = None
    for rate in rates:
        try:
            found = _learn(player, weights, steps, rate)
        except (RuntimeError, StopIteration) as error:  # in-place ops that autograd cannot follow
            raise CannotPlay(str(error).splitlines()[0] or type(error).__name__) from error
        if best is None or found.end < best.end:
            best = found
    assert best is not None
    return best


def _learn(player: Player, weights: Sequence[Tensor], steps: int, rate: float) -> Overfit:
    copies = [weight.detach().clone(memory_format=torch.preserve_format) for weight in weights]
    for copy in copies:
        copy.requires_grad_()
    by_memory = {
        weight.untyped_storage()._cdata: copy for weight, copy in zip(weights, copies, strict=True)
    }
    optimizer = _Adam(copies, rate)
    losses: list[float] = []
    with torch.enable_grad(), torch._C.DisableTorchFunction(), torch._C._DisableAutocast():
        for _ in range(steps + 1):
            total = _Differentiable(player, by_memory).loss()
            losses.append(float(total.detach()))
            if not math.isfinite(losses[-1]) or not total.requires_grad:
                break
            optimizer.step(torch.autograd.grad(total, copies, allow_unused=True))
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        raise CannotPlay("the loss is no number")
    return Overfit(losses[0], min(finite), len(losses) - 1, rate)


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


class _Differentiable:
    """One pass over a tape that autograd follows: views are strided ones of what the ops gave."""

    def __init__(self, player: Player, weights: dict[int, Tensor]) -> None:
        self._player = player
        self._weights = weights
        self._made: dict[int, Tensor] = {}

    def loss(self) -> Tensor:
        """The sum of the roots."""
        for _, entry in self._player.program:
            if isinstance(entry, Op):
                self._do(entry)
        roots = [self._given(root.view) for root in self._player.roots]
        total: Tensor = torch.stack([root.reshape(()).float() for root in roots]).sum()
        return total

    def _do(self, op: Op) -> None:
        if op.drawn:
            raise CannotPlay("its ops draw random numbers")
        for number in op.writes:
            if number not in self._made:
                self._begin(number, op)
        result = op.func(*self._given(op.args), **self._given(op.kwargs))
        results = list(_flat(result))
        for position, number, _ in op.makes:
            self._made[number] = results[position]

    def _begin(self, number: int, op: Op) -> None:
        content = next(
            entry.content
            for _, entry in self._player.program
            if isinstance(entry, Begin) and entry.number == number
        )
        view = next(item for item in _views((op.args, op.kwargs)) if item.number == number)
        self._made[number] = content.clone().view(view.dtype)

    def _given(self, value: Any) -> Any:
        if isinstance(value, View):
            return _strided(self._made[value.number], value)
        if isinstance(value, Weight):
            tensor = value.tensor
            copy = self._weights.get(tensor.untyped_storage()._cdata)
            if copy is None:
                return tensor
            if copy.shape == tensor.shape and copy.stride() == tensor.stride():
                return copy
            offset = int(tensor.storage_offset())
            return torch.as_strided(copy, tensor.shape, tensor.stride(), offset)
        if isinstance(value, Held):
            return value.tensor
        if isinstance(value, (list, tuple)):
            return type(value)(self._given(item) for item in value)
        if isinstance(value, dict):
            return {key: self._given(item) for key, item in value.items()}
        return value


def _strided(made: Tensor, view: View) -> Tensor:
    if made.dtype != view.dtype or view.conj or view.neg:
        raise CannotPlay("memory is read as another type")
    same = (
        tuple(made.shape) == view.size
        and tuple(made.stride()) == view.stride
        and made.storage_offset() == view.offset
    )
    return made if same else torch.as_strided(made, view.size, view.stride, view.offset)


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in _flat(item)] if isinstance(value, (list, tuple)) else []


def _views(value: Any) -> list[View]:
    if isinstance(value, View):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in _views(item)]
    return _views(list(value.values())) if isinstance(value, dict) else []
