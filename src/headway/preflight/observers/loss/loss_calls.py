"""Losses that are trained on: calls of torch's loss functions, and formulas written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss import loss_inputs as facts_of
from headway.preflight.observers.loss.loss_inputs import (
    LOSSES,
    LossArguments,
    OutputActivation,
    find_clipped_output,
    find_output_activation,
)
from headway.preflight.observers.loss.output_range import ValueRange, find_value_range
from headway.preflight.script_context import ScriptContext
from headway.preflight.source_lines import (
    find_batch_functions,
    find_layer_line,
    find_truncating_line,
)
from headway.torch_adapters.autograd_graph import next_nodes, walk_graph
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.loss_graph import add_note, formula_nodes, read_note, take_note
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.op_schema import BINARY_LOSSES, CLASS_LOSSES, REGRESSION_LOSSES

# Calls of torch's loss functions: what they were given, if what they gave is trained on.

# Facts about a call are noted on the graph of its result and reported when a backward pass reaches
# it, so that losses for validation and logging are ignored. A call that raised is reported too.

TOPIC = "loss-call"
MOST_LOSS_CALLS = 3
"""Calls of one line that are looked at closely."""


class _KnowsBatch(Observer):
    """Remembers the number of rows that the model was given."""

    def start(self) -> None:
        self._batch: set[int] = set()

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(self.script.stack) == 1 and self.script.step < STEPS:
            self._batch = {item.shape[0] for _, item in find_tensors(args) if item.ndim}

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if len(self.script.stack) == 1 and self.script.step < STEPS:
            self._batch |= {item.shape[0] for _, item in find_tensors(dict(kwargs)) if item.ndim}


class LossCalls(_KnowsBatch):
    """Notes every loss function's arguments on its result."""

    functions = LOSSES

    def start(self) -> None:
        super().start()
        self._seen: dict[Any, int] = {}
        self._open: dict[str, Any] | None = None
        """The facts of a call that has not come back."""
        self._wanted: str | None = None
        self._pending = False
        self._making: tuple[Any, ...] = ()

    def function_begins(self, call: TorchCall) -> None:
        self._report_raised("")
        given = LossArguments.of(call)
        if given is None or not torch.is_grad_enabled():
            return
        if given.prediction.is_meta or given.target.is_meta:  # no values to look at
            return
        place = self.script.place()
        site = (given.function, str(place))
        close = self._seen.get(site, 0) < MOST_LOSS_CALLS
        if close:
            self._seen[site] = self._seen.get(site, 0) + 1
        labels = _labels(given)
        if not close and not (labels and labels["ignored"] == labels["labels"]):
            if labels and labels["outside"]:
                self._open = _plain(given) | labels | {"place": place}
            return
        self._open = _describe_call(given, self.script) | labels | {"place": place}
        if given.function in REGRESSION_LOSSES:
            self._open["repeated"] = facts_of.find_repeated_side(
                given.prediction, given.target, self._batch
            )
        self._wanted = TOPIC

    def function_ended(self, call: TorchCall) -> None:
        facts, self._open = self._open, None
        wanted, self._wanted = self._wanted, None
        if facts is None or wanted is None or not isinstance(call.result, Tensor):
            return
        if call.result.numel() == 1:
            value = float(call.result.detach())
            facts["value"] = value if value == value and abs(value) != float("inf") else None
        if add_note(call.result, TOPIC, facts):
            self._pending = True

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self._pending:
            return
        self._pending = False
        for node in formula_nodes(roots):
            facts = take_note(node, TOPIC)
            if facts is not None:
                if facts.get("labels") and facts["labels"] == facts["ignored"]:
                    facts["nonfinite"] = not all(bool(root.isfinite().all()) for root in roots)
                    cuts = map(find_truncating_line, self._making)
                    facts["place"] = next(filter(None, cuts), facts["place"])
                self.evidence.record(TOPIC, facts)

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._making = find_batch_functions(loader)

    def crashed(self, error: BaseException) -> None:
        self._report_raised(f"{type(error).__name__}: {error}")

    def _report_raised(self, error: str) -> None:
        """A call that began and did not end has raised, whether or not the script minded."""
        facts, self._open = self._open, None
        if facts is not None:
            self.evidence.record(TOPIC, facts | {"raised": True, "error": error[:200]})


def _plain(given: LossArguments) -> dict[str, Any]:
    return {
        "function": given.function,
        "reduction": given.reduction,
        "prediction": {"shape": list(given.prediction.shape)},
        "target": {"shape": list(given.target.shape), "dtype": facts_of.dtype_of(given.target)},
    }


def _describe_call(given: LossArguments, script: ScriptContext) -> dict[str, Any]:
    prediction, target = given.prediction, given.target
    facts: dict[str, Any] = {
        "function": given.function,
        "reduction": given.reduction,
        "weighted": given.weighted,
        "prediction": _prediction(given, script),
        "target": facts_of.describe_tensor(target),
        "crossed": facts_of.is_crossed_broadcast(prediction, target)
        and given.function not in CLASS_LOSSES,
    }
    if given.function in CLASS_LOSSES and prediction.ndim:
        facts["classes"] = prediction.shape[given.class_axis]
        facts["tied"] = _tied(prediction)
        if not given.labels:
            facts["target"]["odd_rows"] = _odd_rows(given)
    if given.function == "kl_div":
        facts["log_target"] = given.log_target
    masked = given.reduction == "none" or given.weighted
    if given.function in BINARY_LOSSES:
        facts["target"] |= outside_of((0.0, 1.0), target, masked=masked)
        facts["swapped"] = target.requires_grad and not prediction.requires_grad
    elif (
        given.function in REGRESSION_LOSSES and (reach := find_value_range(prediction)) is not None
    ):
        facts["target"] |= outside_of(reach.ends, target, masked=masked)
        facts["bounded"] = bounded_by(reach, script)
    return facts


def outside_of(ends: tuple[float, float], target: Tensor, *, masked: bool) -> dict[str, Any]:
    """Facts about targets that should be in a range."""
    share = facts_of.share_outside(target, *ends, masked=masked)
    return {"reach": [max(ends[0], -1e300), min(ends[1], 1e300)], "outside_share": share}


def bounded_by(reach: ValueRange, script: ScriptContext) -> dict[str, Any]:
    """Facts about the activation that bounds an output."""
    layer = read_note(reach.node, "made_in")
    made_at = find_layer_line(script, layer()) if layer else read_note(reach.node, "made_at")
    return {"made_by": reach.made_by, "made_at": made_at}


def _prediction(given: LossArguments, script: ScriptContext) -> dict[str, Any]:
    tensor, axis = given.prediction, given.class_axis
    facts = facts_of.describe_tensor(tensor)
    facts["sums_to_one"] = facts_of.sums_to_one(tensor, axis)
    if given.function in (*CLASS_LOSSES, "kl_div"):
        facts["logs_of_one"] = facts_of.are_log_probabilities(tensor, axis)
    origin = find_output_activation(tensor)
    if origin is not None:
        facts |= {"made_by": origin.activation, "made_whole": origin.whole}
        if origin.dim is not None and origin.shape:
            facts |= {"made_dim": origin.dim, "made_shape": list(origin.shape)}
        made_at = read_note(origin.node, "made_at")
        if made_at is not None:
            facts["made_at"] = made_at
    if given.function in (*CLASS_LOSSES, "binary_cross_entropy_with_logits"):
        facts |= _clipping(tensor, script)
    return facts


def _clipping(prediction: Tensor, script: ScriptContext) -> dict[str, Any]:
    """Facts about an op that clips the logits at 0."""
    clip = find_clipped_output(prediction)
    if clip is None:
        return {}
    layer = read_note(clip.node, "made_in")
    line = find_layer_line(script, layer()) if layer else None
    return {
        "clipped_by": clip.name,
        "clipped_share": clip.share,
        "clipped_at": line or read_note(clip.node, "made_at"),
    }


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
    return facts_of.share_of_odd_rows(given.target, given.class_axis)


def _tied(prediction: Tensor) -> bool:
    """Whether the logits come from a product with an embedding table, as tied ones do."""
    node: Any = prediction.grad_fn
    for _ in range(8):
        if node is None:
            return False
        leaves = [
            variable
            for following in next_nodes(node)
            for further in (following, *next_nodes(following))
            if isinstance(variable := getattr(further, "variable", None), Tensor)
        ]
        if leaves:
            return any(leaf.ndim == 2 and _feeds_embedding(leaf, node) for leaf in leaves)
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _feeds_embedding(leaf: Tensor, start: Any) -> bool:
    for node in walk_graph([start], most=5000):
        if node.name().startswith("Embedding"):
            for following, _ in node.next_functions:
                if getattr(following, "variable", None) is leaf:
                    return True
    return False


# Losses written by hand: differences, products and softmaxes on the way to what is trained on.

# Notes wait on the graph, as those of `loss_calls.py` do, and are reported when a backward pass
# finds them in its loss formula; a softmax inside the model is not in it.

FORMULA, SOFTMAX = "loss-formula", "loss-softmax"
STEPS = 5
"""Steps that are looked at: a formula does not change."""
MOST_FORMULA_CALLS = 3
"""Maximum number of reports for one line."""
_DIFFERENCES = ("sub", "subtract", "__sub__", "__rsub__", "rsub")
_PRODUCTS = ("mul", "multiply", "__mul__", "__rmul__")
_SUMS = ("add", "__add__", "__radd__")
_SOFTMAXES = ("softmax", "log_softmax")


class LossFormulas(_KnowsBatch):
    """Notes what may be wrong in a formula on the node that computes it."""

    functions = find_aliases(*_DIFFERENCES, *_PRODUCTS, *_SUMS, *_SOFTMAXES, "sigmoid")
    calls_before = STEPS

    def start(self) -> None:
        super().start()
        self._told: dict[str, int] = {}
        self._pending = False
        self._crossings: dict[tuple[int, ...], Any] = {}
        """Shape (N, N) → the line where (N) met (N, 1), such as advantages = returns - values."""

    def function_ended(self, call: TorchCall) -> None:
        if self.script.step >= STEPS or not isinstance(call.result, Tensor):
            return
        if call.result.ndim == 2 and not self.script.stack:
            self._note_crossing(call)
        if call.result.grad_fn is None or call.name in _SUMS:
            return
        if call.name in _SOFTMAXES:
            self._softmax(call.result, call.name)
        elif call.name == "sigmoid":
            add_note(call.result, "made_at", self.script.place())
        else:
            self._arithmetic(call)

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self._pending or self.script.step >= STEPS:
            return
        self._pending = False
        for node in formula_nodes(roots):
            for topic in (FORMULA, SOFTMAX):
                facts = take_note(node, topic)
                if facts is not None:
                    self._report(topic, facts)

    def _report(self, topic: str, facts: dict[str, Any]) -> None:
        site = f"{topic} {facts['place']}"
        self._told[site] = self._told.get(site, 0) + 1
        if self._told[site] <= MOST_FORMULA_CALLS:
            self.evidence.record(topic, facts)

    def _softmax(self, result: Tensor, name: str) -> None:
        place = self.script.place()
        add_note(result, "made_at", place)
        origin = OutputActivation(name, result.grad_fn, whole=True)
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
        self._pending |= add_note(result, SOFTMAX, facts)

    def _note_crossing(self, call: TorchCall) -> None:
        sides = _operands(call)
        if sides is None or not all(side.is_floating_point() for side in sides):
            return
        if sides[0].ndim != sides[1].ndim and facts_of.is_crossed_broadcast(*sides):
            self._crossings[tuple(call.result.shape)] = self.script.place()

    def _arithmetic(self, call: TorchCall) -> None:
        sides = _operands(call)
        if sides is None or sides[0].requires_grad == sides[1].requires_grad:
            return
        prediction, target = sides if sides[0].requires_grad else sides[::-1]
        crossed = facts_of.is_crossed_broadcast(prediction, target)
        place = self._crossings.get(tuple(target.shape))
        if place is not None and prediction.numel() == target.shape[0]:
            crossed = True
        outside = None if call.name in _PRODUCTS else _outside(prediction, target)
        if not crossed and outside is None:
            return
        facts: dict[str, Any] = {
            "function": "product" if call.name in _PRODUCTS else "difference",
            "prediction": facts_of.describe_tensor(prediction),
            "target": facts_of.describe_tensor(target),
            "crossed": crossed,
            "place": place or self.script.place(),
        }
        if outside is not None:
            facts["bounded"] = bounded_by(outside[0], self.script)
            facts["target"] |= outside[1]
        self._pending |= add_note(call.result, FORMULA, facts)


def _operands(call: TorchCall) -> tuple[Tensor, Tensor] | None:
    one, other = call.argument(0, "input"), call.argument(1, "other")
    return (one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else None


def _outside(prediction: Tensor, target: Tensor) -> tuple[ValueRange, dict[str, Any]] | None:
    """The range of the prediction, and facts about targets, if some are outside it."""
    if not target.is_floating_point() or prediction.numel() != target.numel():
        return None
    reach = find_value_range(prediction)
    if reach is None:
        return None
    facts = outside_of(reach.ends, target, masked=True)
    return (reach, facts) if facts["outside_share"] else None
