"""Elements of a weight whose gradients the script sets to 0, and that move all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.torch_adapters.compat import find_aliases

TOPIC = "frozen-moved"
STEPS = 3
"""Steps in a row in which the same elements must be meant, and move."""
FIRST_STEPS = 12
MOST_ELEMENTS = 1 << 22
_WRITES = ("mul_", "__imul__", "masked_fill_", "index_fill_")


class MaskedGradients(Observer):
    """Rows of an embedding that are meant to be frozen, and that weight decay still moves."""

    functions = (Tensor.__setitem__, *find_aliases(*_WRITES))

    def start(self) -> None:
        self._gradients: dict[int, Tensor] = {}
        """The address of each gradient of this step → its weight."""
        self._masks: dict[int, tuple[Tensor, Tensor, Any]] = {}
        """Weight → itself, the elements whose gradient was set to 0 in this step, and where."""
        self._kept: dict[int, tuple[Tensor, Tensor, Tensor, Any]] = {}
        """The same of the step before, with the values it had then."""
        self._stepped: set[int] = set()
        """Weights of which the optimizer's own step changed such elements."""
        self._moved: dict[int, int] = {}
        self._over = False

    @torch.no_grad()
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._over:
            return
        held = (
            p for item in self.script.optimizers for g in item.param_groups for p in g["params"]
        )
        self._gradients = {
            p.grad.data_ptr(): p
            for p in held
            if type(p.grad) is Tensor and not p.grad.is_sparse and p.numel() <= MOST_ELEMENTS
        }

    def function_begins(self, call: TorchCall) -> None:
        written = call.args[0] if call.args else None
        if not self._gradients or not isinstance(written, Tensor):
            return
        weight = self._gradients.get(written.data_ptr())
        if weight is None or weight.shape != written.shape:
            return
        zeroed = _zeroed(call, written)
        if zeroed is not None and bool(zeroed.any()) and not bool(zeroed.all()):
            self._masks[id(weight)] = (weight, zeroed, self.script.place())

    @torch.no_grad()
    def step_begins(self, optimizer: Optimizer) -> None:
        self._gradients = {}
        if self._over:
            return
        kept, self._kept = self._kept, {}
        for key, (weight, mask, place) in self._masks.items():
            if not any(weight is p for g in optimizer.param_groups for p in g["params"]):
                continue
            before = kept.get(key)
            if before is not None and torch.equal(before[1], mask):
                # Some scripts write the old values back after the step.
                back = torch.equal(weight.detach()[mask], before[2])
                moved = key in self._stepped and not back
                self._moved[key] = self._moved.get(key, 0) + 1 if moved else 0
            self._kept[key] = (weight, mask, weight.detach()[mask].clone(), place)
            if self._moved.get(key, 0) >= STEPS:
                self._report(optimizer, weight, mask, place)
                return
        self._masks = {}

    @torch.no_grad()
    def step_ended(self, optimizer: Optimizer) -> None:
        for key, (weight, mask, before, _) in self._kept.items():
            same = torch.equal(weight.detach()[mask], before)
            (self._stepped.discard if same else self._stepped.add)(key)
        if self.script.step >= FIRST_STEPS:
            self.finished()

    def finished(self) -> None:
        self._over = True
        self._gradients, self._masks, self._kept = {}, {}, {}

    def _report(self, optimizer: Optimizer, weight: Tensor, mask: Tensor, place: Any) -> None:
        group = optimizer.param_groups[0]
        facts: dict[str, Any] = {
            "names": [self.script.name_of(weight) or "a tensor"],
            "count": 1,
            "elements": int(mask.sum()),
            "optimizer": type(optimizer).__name__,
            "weight_decay": float(group.get("weight_decay") or 0.0),
            "momentum": float(group.get("momentum") or 0.0),
        }
        self.evidence.record(TOPIC, facts if place is None else {**facts, "place": place})
        self.finished()


@torch.no_grad()
def _zeroed(call: TorchCall, gradient: Tensor) -> Tensor | None:
    """Which elements of a gradient a call sets to 0."""
    name, mask = call.name, torch.zeros(gradient.shape, dtype=torch.bool, device=gradient.device)
    if name == "__setitem__":
        index, value = call.args[1], call.args[2]
        if not _is_zero(value):
            return None
        mask[index] = True
        return mask
    other = call.argument(1, "mask" if name == "masked_fill_" else "other")
    if name in ("mul_", "__imul__"):
        return (other == 0).expand_as(mask) if isinstance(other, Tensor) else None
    if not _is_zero(call.argument(2 if name == "masked_fill_" else 3, "value")):
        return None
    if name == "masked_fill_":
        return other.expand_as(mask) if isinstance(other, Tensor) else None
    return mask.index_fill_(call.args[1], call.args[2], True) if len(call.args) > 2 else None


def _is_zero(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and float(value) == 0.0
    return isinstance(value, (int, float)) and value == 0
