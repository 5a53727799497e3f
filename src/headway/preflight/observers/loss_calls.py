"""Calls of torch's loss functions: what they were given, if what they gave is trained on.

What is seen of a call is noted on the graph of its result and told when a backward pass reaches
it, so that losses of validation and logging tell nothing. A call that raised is told, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.live.graph import nodes
from headway.preflight import loss_facts as facts_of
from headway.preflight.activations import origin_of
from headway.preflight.loss_arguments import LOSSES, OF_CLASSES, LossArguments
from headway.preflight.loss_zone import note, noted, take, zone
from headway.preflight.observer import Call, Observer
from headway.preflight.reach import Reach, reach_of
from headway.preflight.scene import Scene
from headway.preflight.user_source import only_line

TOPIC = "loss-call"
CALLS = 3
"""Calls of one line that are looked at closely."""
PROBABILITIES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


class LossCalls(Observer):
    """Notes every loss function's arguments on its result."""

    functions = LOSSES

    def start(self) -> None:
        self._seen: dict[Any, int] = {}
        self._open: dict[str, Any] | None = None
        """The facts of a call that has not come back."""
        self._wanted: str | None = None
        self._pending = False

    def function_begins(self, call: Call) -> None:
        self._tell_raised("")
        given = LossArguments.of(call)
        if given is None or not torch.is_grad_enabled():
            return
        if given.prediction.is_meta or given.target.is_meta:  # no values to look at
            return
        place = self.scene.place()
        site = (given.function, str(place))
        close = self._seen.get(site, 0) < CALLS
        if close:
            self._seen[site] = self._seen.get(site, 0) + 1
        labels = _labels(given)
        if not close and not (labels and labels["ignored"] == labels["labels"]):
            if labels and labels["outside"]:
                self._open = _plain(given) | labels | {"place": place}
            return
        self._open = _looked_at(given, self.scene) | labels | {"place": place}
        self._wanted = TOPIC

    def function_ended(self, call: Call) -> None:
        facts, self._open = self._open, None
        wanted, self._wanted = self._wanted, None
        if facts is None or wanted is None or not isinstance(call.result, Tensor):
            return
        if call.result.numel() == 1:
            value = float(call.result.detach())
            facts["value"] = value if value == value and abs(value) != float("inf") else None
        if note(call.result, TOPIC, facts):
            self._pending = True

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self._pending:
            return
        self._pending = False
        for node in zone(roots):
            facts = take(node, TOPIC)
            if facts is not None:
                self.evidence.tell(TOPIC, facts)

    def crashed(self, error: BaseException) -> None:
        self._tell_raised(f"{type(error).__name__}: {error}")

    def _tell_raised(self, error: str) -> None:
        """A call that began and did not end has raised, whether or not the script minded."""
        facts, self._open = self._open, None
        if facts is not None:
            self.evidence.tell(TOPIC, facts | {"raised": True, "error": error[:200]})


def _plain(given: LossArguments) -> dict[str, Any]:
    return {
        "function": given.function,
        "reduction": given.reduction,
        "prediction": {"shape": list(given.prediction.shape)},
        "target": {"shape": list(given.target.shape), "dtype": facts_of.dtype_of(given.target)},
    }


def _looked_at(given: LossArguments, scene: Scene) -> dict[str, Any]:
    prediction, target = given.prediction, given.target
    facts: dict[str, Any] = {
        "function": given.function,
        "reduction": given.reduction,
        "weighted": given.weighted,
        "prediction": _prediction(given),
        "target": facts_of.described(target),
        "crossed": facts_of.crossed(prediction, target) and given.function not in OF_CLASSES,
    }
    if given.function in OF_CLASSES and prediction.ndim:
        facts["classes"] = prediction.shape[given.class_axis]
        facts["tied"] = _tied(prediction)
        if not given.labels:
            facts["target"]["odd_rows"] = _odd_rows(given)
    if given.function == "kl_div":
        facts["log_target"] = given.log_target
    masked = given.reduction == "none" or given.weighted
    if given.function in PROBABILITIES:
        facts["target"] |= outside_of((0.0, 1.0), target, masked=masked)
    elif given.function in ELEMENTWISE and (reach := reach_of(prediction)) is not None:
        facts["target"] |= outside_of(reach.ends, target, masked=masked)
        facts["bounded"] = bounded_by(reach, scene)
    return facts


def outside_of(ends: tuple[float, float], target: Tensor, *, masked: bool) -> dict[str, Any]:
    """What is told of targets that should lie in a range."""
    share = facts_of.share_outside(target, *ends, masked=masked)
    return {"reach": [max(ends[0], -1e300), min(ends[1], 1e300)], "outside_share": share}


def bounded_by(reach: Reach, scene: Scene) -> dict[str, Any]:
    """What is told of the activation that bounds an output."""
    layer = noted(reach.node, "made_in")
    if layer is None:
        made_at = noted(reach.node, "made_at")
    else:
        made_at = only_line(scene, rf"\b{layer}\(")
    return {"made_by": reach.made_by, "made_at": made_at}


def _prediction(given: LossArguments) -> dict[str, Any]:
    tensor, axis = given.prediction, given.class_axis
    facts = facts_of.described(tensor)
    facts["sums_to_one"] = facts_of.sums_to_one(tensor, axis)
    if given.function in (*OF_CLASSES, "kl_div"):
        facts["logs_of_one"] = facts_of.logs_of_one(tensor, axis)
    origin = origin_of(tensor)
    if origin is not None:
        facts |= {"made_by": origin.activation, "made_whole": origin.whole}
        if origin.dim is not None and origin.shape:
            facts |= {"made_dim": origin.dim, "made_shape": list(origin.shape)}
        made_at = noted(origin.node, "made_at")
        if made_at is not None:
            facts["made_at"] = made_at
    return facts


def _labels(given: LossArguments) -> dict[str, Any]:
    if not given.labels or given.prediction.ndim == 0:
        return {}
    classes = given.prediction.shape[given.class_axis]
    target = given.target.detach()
    kept = target != given.ignore_index
    bad = kept & ((target < 0) | (target >= classes))
    facts: dict[str, Any] = {
        "labels": target.numel(),
        "ignored": target.numel() - int(kept.sum()),
        "ignore_index": given.ignore_index,
        "classes": classes,
        "outside": int(bad.sum()),
    }
    if facts["outside"]:
        facts["outside_values"] = sorted({int(v) for v in target[bad].reshape(-1)[:1000]})[:5]
        facts["sample"] = int(bad.reshape(bad.shape[0], -1).any(1).nonzero()[0]) if bad.ndim else 0
    return facts


def _odd_rows(given: LossArguments) -> float | None:
    """Soft targets: the share of rows that are no distribution."""
    if given.target.shape != given.prediction.shape:
        return None
    return facts_of.odd_rows(given.target, given.class_axis)


def _tied(prediction: Tensor) -> bool:
    """Whether the logits come from a product with an embedding table, as tied ones do."""
    node: Any = prediction.grad_fn
    for _ in range(8):
        if node is None:
            return False
        leaves = [
            variable
            for following, _ in node.next_functions
            for further in (
                (following, *(f for f, _ in following.next_functions)) if following else ()
            )
            if isinstance(variable := getattr(further, "variable", None), Tensor)
        ]
        if leaves:
            return any(leaf.ndim == 2 and _feeds_embedding(leaf, node) for leaf in leaves)
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _feeds_embedding(leaf: Tensor, start: Any) -> bool:
    for node in nodes([start], most=5000):
        if node.name().startswith("Embedding"):
            for following, _ in node.next_functions:
                if getattr(following, "variable", None) is leaf:
                    return True
    return False
