"""Losses that can be lowered without learning: unnormalised likelihoods, and load-balancing losses
of routers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.loss_inputs import dtype_of
from headway.torch_adapters.autograd_graph import next_nodes, node_kind, ops_with_role
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.live_objects import find_leaves
from headway.torch_adapters.loss_graph import (
    MOST_FORMULA_NODES,
    add_note,
    formula_nodes,
    read_note,
    take_note,
)

# Load-balancing losses of routers: whether they fall by an even choice, or by smaller scores.

# Such a loss is the sum of how often each expert is chosen (which has no gradient) times how high
# its scores are. With scores that sum to 1 it is lowest where the choice is even. Where their sum
# is free, it falls as all scores do, and the choice may stay as it is.

COMPONENT_TOPIC = "loss-component"
SEEN = "balance-loss"
MOST_CHOICES, MOST_EXPERTS, MOST_SITES = 16, 4096, 16
WINDOW = 10
"""Steps at the beginning and at the end that are compared."""
FEWEST = 40
SHRUNK = 0.5
"""What the sum of the scores must have fallen to …"""
STILL, EVEN = 0.7, 0.03
"""… while the choice is still as uneven as this share of what it was, and not even."""
_CHOICES = ("topk", "argmax", "max", "sort", "argsort")
_PRODUCTS = ("mul", "__mul__", "__rmul__", "dot", "inner", "matmul", "__matmul__")
_VECTORS = ("mean", "sum", "div", "true_divide", "softmax")


@dataclass(slots=True)
class BalanceTrend:
    """The course of one balancing loss."""

    place: dict[str, Any] | None
    first: int
    sums: list[float] = field(default_factory=list)
    """Of the scores, step by step."""
    uneven: list[float] = field(default_factory=list)
    """The loss with scores that sum to 1: 1 where the choice is even."""

    def before(self, values: Sequence[float]) -> float:
        return median(values[:WINDOW])

    def after(self, values: Sequence[float]) -> float:
        return median(values[-WINDOW:])

    def is_gamed(self) -> bool:
        """Whether the scores shrank and the choice is as uneven as it was."""
        if len(self.sums) < FEWEST or self.after(self.sums) > SHRUNK * self.before(self.sums):
            return False
        uneven, was = self.after(self.uneven) - 1, self.before(self.uneven) - 1
        return uneven > EVEN and uneven >= STILL * was


class BalanceLosses(Observer):
    """Observes the choices of routers and the products that penalise them."""

    functions = find_aliases(*_CHOICES, *_PRODUCTS, *_VECTORS)

    def start(self) -> None:
        self._chosen: list[Tensor] = []
        self._visits: dict[str, int] = {}
        self._courses: dict[tuple[str, int], BalanceTrend] = {}
        self._pending = False

    def function_ended(self, call: TorchCall) -> None:
        if call.name in _CHOICES:
            self._choice(call)
        elif self._chosen and torch.is_grad_enabled():
            if call.name in _VECTORS:
                result = call.result
                if isinstance(result, Tensor) and result.ndim == 1 and result.requires_grad:
                    add_note(result, "vector_at", self.script.place())
            else:
                self._product(call)

    def _choice(self, call: TorchCall) -> None:
        scores, result = call.argument(0, "input"), call.result
        if not isinstance(scores, Tensor) or scores.ndim < 2 or scores.grad_fn is None:
            return
        found = result[1] if isinstance(result, tuple) and len(result) == 2 else result
        experts = scores.shape[-1]
        if not isinstance(found, Tensor) or found.dtype != torch.int64 or not found.numel():
            return
        if 2 <= experts <= MOST_EXPERTS and len(self._chosen) < MOST_CHOICES:
            counts = torch.bincount(found.detach().reshape(-1), minlength=experts)
            if len(counts) == experts:
                self._chosen.append(counts / counts.sum())

    def _product(self, call: TorchCall) -> None:
        if len(call.args) != 2 or not isinstance(call.result, Tensor):
            return
        one, other = call.args
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return
        if one.ndim != 1 or one.shape != other.shape or one.requires_grad == other.requires_grad:
            return
        load, scores = (other, one) if one.requires_grad else (one, other)
        if not load.is_floating_point() or not self._is_choice(load.detach()):
            return
        total = float(scores.detach().sum())
        share = load.detach() / load.detach().sum()
        if total <= 0:
            return
        uneven = float((share * scores.detach()).sum()) * len(share) / total
        waiting = take_note(call.result.grad_fn, SEEN) or []
        place = read_note(scores.grad_fn, "vector_at") or self.script.place()
        self._pending |= add_note(call.result, SEEN, [*waiting, (place, total, uneven)])

    def _is_choice(self, load: Tensor) -> bool:
        total = load.sum()
        return any(
            len(chosen) == len(load) and bool(torch.allclose(load / total, chosen, atol=1e-4))
            for chosen in self._chosen
        )

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._pending:
            self._pending = False
            for node in formula_nodes(roots):
                for place, total, uneven in take_note(node, SEEN) or ():
                    self._took(place, total, uneven)
        self._chosen.clear()
        self._visits.clear()

    def _took(self, place: Any, total: float, uneven: float) -> None:
        number = self._visits.get(str(place), 0)
        self._visits[str(place)] = number + 1
        key = (str(place), number)
        if key not in self._courses and len(self._courses) >= MOST_SITES:
            return
        course = self._courses.setdefault(key, BalanceTrend(place, self.script.step))
        course.sums.append(total)
        course.uneven.append(uneven)

    def step_ended(self, optimizer: Optimizer) -> None:
        self._chosen.clear()

    def finished(self) -> None:
        reported: list[Any] = []
        for course in self._courses.values():
            if course.is_gamed() and course.place not in reported:
                reported.append(course.place)
                self._report(course)

    def _report(self, course: BalanceTrend) -> None:
        self.evidence.record(
            COMPONENT_TOPIC,
            {
                "kind": "gamed",
                "name": "balance",
                "steps": len(course.sums),
                "first_step": course.first,
                "place": course.place,
                "scores_before": course.before(course.sums),
                "scores_after": course.after(course.sums),
                "uneven_before": course.before(course.uneven),
                "uneven_after": course.after(course.uneven),
            },
        )


# Losses that only pull up the scores of the labels: a likelihood without its normalisation.

# The derivative of the loss by the scores of the last layer tells, however it is written: one
# entry in each row, that of the label, and none of it depends on the scores. Such a loss has no
# lower end.

SCORES_TOPIC = "loss-scores"
STEPS = 3
_LAYERS = ("Addmm", "Mm", "Baddbmm", "Bmm", "Convolution", "Linear", "Mkldnn")
_LINEAR = ops_with_role("linear")
"""Operations that are linear in the only input that has a graph."""
_PASSING = ops_with_role("weight")
_JOINS = ("Add", "Cat", "Stack", "Sub", "CopySlices", "Where")


class LinearScores(Observer):
    """Looks at the derivative by the scores, in the first steps."""

    functions = find_aliases("mean", "sum", "nansum", "div", "neg", "mul")
    calls_before = STEPS

    def start(self) -> None:
        self._told = False

    def function_ended(self, call: TorchCall) -> None:
        result = call.result
        if self.script.step < STEPS and isinstance(result, Tensor) and result.numel() == 1:
            add_note(result, "summed_at", self.script.place())

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._told or self.script.step >= STEPS or len(roots) != 1:
            return
        root = roots[0]
        ends = [] if root.grad_fn is None else _ends(root.grad_fn)
        if not ends or len(self.script.optimizers) > 1 or not self._trains(root):
            return
        edges = [GradientEdge(node, 0) for node in ends]
        found = torch.autograd.grad(root, edges, retain_graph=True, allow_unused=True)
        if any(item is None or item.ndim < 2 for item in found):  # type: ignore[redundant-expr]
            return
        pulls = [_classes_last(item, node) for item, node in zip(found, ends, strict=True)]
        if all(map(_pulls_one_of_each_row, pulls)):
            self._told = True
            self.evidence.record(
                SCORES_TOPIC,
                {
                    "function": "loss",
                    "classes": pulls[0].shape[-1],
                    "rows": sum(item.numel() // item.shape[-1] for item in pulls),
                    "prediction": {"shape": list(found[0].shape), "dtype": dtype_of(found[0])},
                    "place": _place(root.grad_fn) or self.script.place(),
                },
            )

    def _trains(self, root: Tensor) -> bool:
        """Whether all that is reached is trained by it; a critic's scores are judged by another."""
        held = {
            id(p) for item in self.script.optimizers for g in item.param_groups for p in g["params"]
        }
        return all(id(leaf) in held for leaf in find_leaves([root]))


def _ends(root: Any) -> list[Any]:
    """The layers a loss is linear in; empty where it is not linear, or where one is met twice."""
    ends: list[Any] = []
    todo, seen = [root], {root}
    while todo:
        node = todo.pop()
        kind = node_kind(node)
        following = next_nodes(node)
        if kind.startswith(_LAYERS):
            if _has_weight(node):
                ends.append(node)
                continue
            if len(following) > 1:
                return []  # similarities, which are bounded by other means
        elif kind not in _LINEAR or (len(following) > 1 and kind not in _JOINS):
            return []
        for item in following:
            if item not in seen:
                seen.add(item)
                todo.append(item)
        if len(seen) > MOST_FORMULA_NODES:
            return []
    return ends if len(ends) <= 512 else []


def _has_weight(node: Any) -> bool:
    """Whether one factor of a product is a parameter."""
    for following, _ in node.next_functions:
        for _ in range(4):
            if following is None or node_kind(following) not in _PASSING:
                break
            following = following.next_functions[0][0]
        if following is not None and hasattr(following, "variable"):
            return True
    return False


def _classes_last(gradient: Tensor, node: Any) -> Tensor:
    of_maps = node_kind(node).startswith("Convolution") and gradient.ndim > 2
    return gradient.movedim(1, -1) if of_maps else gradient


def _pulls_one_of_each_row(gradient: Tensor) -> bool:
    rows = gradient.detach().reshape(-1, gradient.shape[-1])
    pulled = rows != 0
    each = pulled.sum(1)
    if bool((rows > 0).any()) or bool((each > 1).any()) or not bool(each.any()):
        return False
    columns = rows.argmin(1)[each > 0]
    # Always the same one is a choice of an output, not of a label.
    return rows.shape[1] > 1 and columns.numel() > 3 and bool((columns != columns[0]).any())


def _place(root: Any) -> dict[str, Any] | None:
    for node in _downwards(root):
        place = read_note(node, "summed_at")
        if place is not None:
            found: dict[str, Any] = place
            return found
    return None


def _downwards(node: Any) -> Iterator[Any]:
    for _ in range(20):
        yield node
        following = next_nodes(node)
        if len(following) != 1:
            return
        node = following[0]
