"""Losses written by hand: differences, products and softmaxes on the way to what is trained on.

Notes wait on the graph, as those of `loss_calls.py` do, and are told when a backward pass finds
them in its loss formula; a softmax inside the model is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from headway.preflight import loss_facts as facts_of
from headway.preflight.activations import Origin
from headway.preflight.loss_zone import note, take, zone
from headway.preflight.observer import Call, Observer
from headway.preflight.observers.loss_calls import bounded_by, outside_of
from headway.preflight.reach import Reach, reach_of
from headway.preflight.spellings import spellings
from headway.torch_tools.nested import tensors_in

FORMULA, SOFTMAX = "loss-formula", "loss-softmax"
STEPS = 5
"""Steps that are looked at: a formula does not change."""
CALLS = 3
"""Times one line is told of."""
_DIFFERENCES = ("sub", "subtract", "__sub__", "__rsub__", "rsub")
_PRODUCTS = ("mul", "multiply", "__mul__", "__rmul__")
_SOFTMAXES = ("softmax", "log_softmax")


class LossFormulas(Observer):
    """Notes what may be wrong in a formula on the node that computes it."""

    functions = spellings(*_DIFFERENCES, *_PRODUCTS, *_SOFTMAXES, "sigmoid")

    def start(self) -> None:
        self._told: dict[str, int] = {}
        self._pending = False
        self._batch: set[int] = set()

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(self.scene.stack) == 1 and self.scene.step < STEPS:
            self._batch = {item.shape[0] for _, item in tensors_in(args) if item.ndim}

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if len(self.scene.stack) == 1 and self.scene.step < STEPS:
            self._batch |= {item.shape[0] for _, item in tensors_in(dict(kwargs)) if item.ndim}

    def function_ended(self, call: Call) -> None:
        if self.scene.step >= STEPS or not isinstance(call.result, Tensor):
            return
        if call.result.grad_fn is None:
            return
        if call.name in _SOFTMAXES:
            self._softmax(call.result, call.name)
        elif call.name == "sigmoid":
            note(call.result, "made_at", self.scene.place())
        else:
            self._arithmetic(call)

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self._pending or self.scene.step >= STEPS:
            return
        self._pending = False
        for node in zone(roots):
            for topic in (FORMULA, SOFTMAX):
                facts = take(node, topic)
                if facts is not None:
                    self._tell(topic, facts)

    def _tell(self, topic: str, facts: dict[str, Any]) -> None:
        site = f"{topic} {facts['place']}"
        self._told[site] = self._told.get(site, 0) + 1
        if self._told[site] <= CALLS:
            self.evidence.tell(topic, facts)

    def _softmax(self, result: Tensor, name: str) -> None:
        place = self.scene.place()
        note(result, "made_at", place)
        origin = Origin(name, result.grad_fn, whole=True)
        if origin.dim is None:
            return
        shape = list(result.shape)
        facts = {
            "function": name,
            "axis": origin.dim,
            "size": shape[origin.dim] if shape else 1,
            "shape": shape,
            "batch_axis": origin.dim == 0 and bool(shape) and shape[0] in self._batch,
            "place": place,
        }
        self._pending |= note(result, SOFTMAX, facts)

    def _arithmetic(self, call: Call) -> None:
        one, other = call.argument(0, "input"), call.argument(1, "other")
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return
        if one.requires_grad == other.requires_grad:
            return
        prediction, target = (one, other) if one.requires_grad else (other, one)
        crossed = facts_of.crossed(prediction, target)
        outside = None if call.name in _PRODUCTS else _outside(prediction, target)
        if not crossed and outside is None:
            return
        facts: dict[str, Any] = {
            "function": "product" if call.name in _PRODUCTS else "difference",
            "prediction": facts_of.described(prediction),
            "target": facts_of.described(target),
            "crossed": crossed,
            "place": self.scene.place(),
        }
        if outside is not None:
            facts["bounded"] = bounded_by(outside[0], self.scene)
            facts["target"] |= outside[1]
        self._pending |= note(call.result, FORMULA, facts)


def _outside(prediction: Tensor, target: Tensor) -> tuple[Reach, dict[str, Any]] | None:
    """What bounds the prediction, and what is told of targets, where any lie outside."""
    if not target.is_floating_point() or prediction.numel() != target.numel():
        return None
    reach = reach_of(prediction)
    if reach is None:
        return None
    told = outside_of(reach.ends, target, masked=True)
    return (reach, told) if told["outside_share"] else None
