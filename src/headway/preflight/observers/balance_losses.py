"""Load-balancing losses of routers: whether they fall by an even choice, or by smaller scores.

Such a loss is the sum of how often each expert is chosen (which has no gradient) times how high its
scores are. With scores that sum to 1 it is lowest where the choice is even. Where their sum is
free, it falls as all scores do, and the choice may stay as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.loss_zone import note, noted, take, zone
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings

TOPIC = "loss-component"
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
class Course:
    """How one balancing loss has gone."""

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
    """Hears choices and the products that punish them."""

    functions = spellings(*_CHOICES, *_PRODUCTS, *_VECTORS)

    def start(self) -> None:
        self._chosen: list[Tensor] = []
        self._visits: dict[str, int] = {}
        self._courses: dict[tuple[str, int], Course] = {}
        self._pending = False

    def function_ended(self, call: Call) -> None:
        if call.name in _CHOICES:
            self._choice(call)
        elif self._chosen and torch.is_grad_enabled():
            if call.name in _VECTORS:
                result = call.result
                if isinstance(result, Tensor) and result.ndim == 1 and result.requires_grad:
                    note(result, "vector_at", self.scene.place())
            else:
                self._product(call)

    def _choice(self, call: Call) -> None:
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

    def _product(self, call: Call) -> None:
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
        waiting = take(call.result.grad_fn, SEEN) or []
        place = noted(scores.grad_fn, "vector_at") or self.scene.place()
        self._pending |= note(call.result, SEEN, [*waiting, (place, total, uneven)])

    def _is_choice(self, load: Tensor) -> bool:
        total = load.sum()
        return any(
            len(chosen) == len(load) and bool(torch.allclose(load / total, chosen, atol=1e-4))
            for chosen in self._chosen
        )

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._pending:
            self._pending = False
            for node in zone(roots):
                for place, total, uneven in take(node, SEEN) or ():
                    self._took(place, total, uneven)
        self._chosen.clear()
        self._visits.clear()

    def _took(self, place: Any, total: float, uneven: float) -> None:
        number = self._visits.get(str(place), 0)
        self._visits[str(place)] = number + 1
        key = (str(place), number)
        if key not in self._courses and len(self._courses) >= MOST_SITES:
            return
        course = self._courses.setdefault(key, Course(place, self.scene.step))
        course.sums.append(total)
        course.uneven.append(uneven)

    def step_ended(self, optimizer: Optimizer) -> None:
        self._chosen.clear()

    def finished(self) -> None:
        told: list[Any] = []
        for course in self._courses.values():
            if course.is_gamed() and course.place not in told:
                told.append(course.place)
                self._tell(course)

    def _tell(self, course: Course) -> None:
        self.evidence.tell(
            TOPIC,
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
