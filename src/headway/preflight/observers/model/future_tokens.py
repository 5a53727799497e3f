"""Whether a language model sees the tokens it has to predict.

Where the targets are the inputs moved by one place, a copy of the model is run with other tokens
after a position: what it says up to there must stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.preflight.observer import Observer, TorchCall
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.model_copy import (
    MOST_FORWARDS,
    ROUNDING_NOISE,
    CannotCopy,
    ForwardRun,
    ModelCopy,
    ModuleForward,
    TracedOp,
    copy_inputs,
    is_training_forward,
    outputs_by_position,
)
from headway.torch_adapters.nested_state import map_tensors

ASKED_AT = (0, 1, 2)
ENOUGH = 2
MOST_TARGETS = 8
FEWEST = 8
"""Targets that must be known to say that they are the inputs moved by one place."""
MOST_ELEMENTS = 1 << 22
_IGNORED = -100
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class ShiftedTargets(NamedTuple):
    """Inputs whose successors are the targets."""

    tokens: Tensor
    time: int
    """Their axis of time."""
    asked: Tensor
    """(batch, time): the positions whose output is compared with a target."""


class FutureTokens(Observer):
    """Observes targets and forward passes, and runs trials at a few steps."""

    functions = find_aliases("cross_entropy", "nll_loss", "gather")
    calls_before = ASKED_AT[-1] + 1

    def start(self) -> None:
        self._forwards: list[ModuleForward] = []
        self._targets: list[tuple[Tensor, int]] = []
        self._asked = 0

    def function_ended(self, call: TorchCall) -> None:
        if self.script.step > ASKED_AT[-1] or len(self._targets) >= MOST_TARGETS:
            return
        gathers = call.name == "gather"
        target = call.argument(2, "index") if gathers else call.argument(1, "target")
        if isinstance(target, Tensor) and target.dtype == torch.long and target.numel() >= FEWEST:
            ignored = call.kwargs.get("ignore_index", _IGNORED)
            self._targets.append((target.detach(), ignored if isinstance(ignored, int) else -100))

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        few = self.script.step <= ASKED_AT[-1] and len(self._forwards) < MOST_FORWARDS
        if few and self._asked < ENOUGH and is_training_forward(module, output):
            self._forwards.append(ModuleForward(module, args, kwargs, self.script.place()))

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        forwards, self._forwards = self._forwards, []
        targets, self._targets = self._targets, []
        for forward in forwards if targets and self._asked < ENOUGH else ():
            found = next(_shifted(forward, targets), None)
            if found is not None and found.tokens.numel() <= MOST_ELEMENTS:
                try:
                    self._ask(forward, found)
                except CannotCopy as why:
                    self.evidence.unavailable("future-dependence", str(why))
                self._asked += 1
                return

    def finished(self) -> None:
        self._forwards, self._targets = [], []

    def _ask(self, forward: ModuleForward, shifted: ShiftedTargets) -> None:
        where = shifted.asked.nonzero()[:, 1]
        last = int(where.median())
        length = shifted.tokens.shape[shifted.time]
        other = _other_tokens(shifted, last)
        if last + 1 >= length or other is None:
            return
        twin = ModelCopy(forward.module, self.script.place)
        base = twin.run(*copy_inputs(forward.args, forward.kwargs), follow=True)

        def change(tensor: Tensor) -> Tensor:
            same = tensor is shifted.tokens or (
                tensor.shape == shifted.tokens.shape
                and tensor.dtype == shifted.tokens.dtype
                and torch.equal(tensor, shifted.tokens)
            )
            return other.clone() if same else tensor.detach().clone()

        changed = map_tensors([list(forward.args), dict(forward.kwargs)], change)
        again = twin.run(changed[0], changed[1], follow=True)
        ratio = _seen_before(base, again, shifted, last)
        if ratio is None:
            return
        facts: dict[str, Any] = {
            "module": self.script.path_of(forward.module),
            "leaks": ratio > ROUNDING_NOISE,
            "ratio": ratio,
            "positions": length,
            "place": forward.place,
        }
        op = (
            _first_leaking_op(base.ops, again.ops, length, last) if ratio > ROUNDING_NOISE else None
        )
        if op is not None:
            facts |= {"op": op.name, "place": op.place or forward.place}
            layer = _both_ways(forward.module) if op.name in RECURRENT else None
            if layer is not None:
                facts["place"] = self.script.origins.of_module(layer) or facts["place"]
        self.evidence.record("future-dependence", facts)


def _both_ways(module: nn.Module) -> nn.Module | None:
    """The first recurrent layer that reads its input from both ends."""
    layers = (part for part in module.modules() if isinstance(part, nn.RNNBase))
    return next((part for part in layers if part.bidirectional), None)


def _shifted(
    forward: ModuleForward, targets: Sequence[tuple[Tensor, int]]
) -> Iterator[ShiftedTargets]:
    for tokens in forward.inputs:
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            continue
        for target, ignored in targets:
            for time in (1, 0):
                asked = _asked(tokens, target.to(tokens.device), ignored, time)
                if asked is not None:
                    yield ShiftedTargets(tokens.detach(), time, asked)


def _asked(tokens: Tensor, target: Tensor, ignored: int, time: int) -> Tensor | None:
    """The positions that must predict the token after them; None if there are none."""
    rows, length = tokens.shape if time == 1 else reversed(tokens.shape)
    if length < 4:
        return None
    shape = list(tokens.shape)
    if target.numel() == rows * (length - 1):
        shape[time] = length - 1
    elif target.numel() != rows * length:
        return None
    lined_up = target.reshape(shape)
    if time == 0:
        tokens, lined_up = tokens.t(), lined_up.t()
    following = tokens[:, 1:]
    predicted = lined_up[:, : length - 1]
    known = (predicted != ignored) & (predicted >= 0)
    count = int(known.sum())
    if count < FEWEST or int(((predicted == following) & known).sum()) < 0.98 * count:
        return None
    standing = int(((predicted == tokens[:, : length - 1]) & known).sum())
    return None if standing > 0.8 * count else known


def _other_tokens(shifted: ShiftedTargets, last: int) -> Tensor | None:
    """The same up to a position, something else after it."""
    tokens = shifted.tokens if shifted.time == 1 else shifted.tokens.t()
    other = tokens.clone()
    behind = tokens[:, last + 1 :]
    for candidate in (behind.roll(1, dims=0), behind.flip(1), behind.roll(1, dims=1)):
        if int((candidate != behind).sum()) * 4 >= behind.numel():
            other[:, last + 1 :] = candidate
            return other if shifted.time == 1 else other.t().contiguous()
    return None


def _seen_before(
    base: ForwardRun, again: ForwardRun, shifted: ShiftedTargets, last: int
) -> float | None:
    """How much outputs at earlier positions changed, relative to those at later ones."""
    length = shifted.tokens.shape[shifted.time]
    rows = shifted.tokens.numel() // length
    for one, two in zip(base.outputs, again.outputs, strict=False):
        lined_up = outputs_by_position(one, rows, length, shifted.time)
        changed = outputs_by_position(two, rows, length, shifted.time)
        if lined_up is None or changed is None:
            continue
        change = (changed.double() - lined_up.double()).abs().nan_to_num(0.0, 0.0, 0.0).amax(-1)
        overall = float(change.max())
        if overall == 0.0:
            return None
        width = min(last + 1, change.shape[1], shifted.asked.shape[1])
        early = change[:, :width][shifted.asked[:, :width].to(change.device)]
        return float(early.max()) / overall if early.numel() else None
    return None


def _first_leaking_op(
    base: Sequence[TracedOp], again: Sequence[TracedOp], length: int, last: int
) -> TracedOp | None:
    """The first operation whose result at an early position holds something of later ones. Where
    several axes are as long as the sequence (a table of all pairs, as many samples as tokens), a
    number counts as early when it is so along all of them."""
    for one, two in zip(base, again, strict=False):
        if one.name != two.name or one.result is None or two.result is None:
            return None
        result, other = one.result, two.result
        axes = [at for at, size in enumerate(result.shape) if size == length]
        if not axes or not result.is_floating_point() or result.shape != other.shape:
            continue
        change = (other.double() - result.double()).abs().nan_to_num(0.0, 0.0, 0.0)
        early = change
        for axis in axes:
            early = early.narrow(axis, 0, last + 1)
        if float(early.max()) > ROUNDING_NOISE * float(change.max()):
            return one
    return None
