"""Targets of a regression loss that are bootstrapped from the network that is trained: they still
have a graph, or the target network is a second name for the trained one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.output_range import CONSTANT
from headway.preflight.script_context import is_measured_step
from headway.preflight.source_lines import find_only_line
from headway.torch_adapters.autograd_graph import next_nodes, node_kind, walk_graph
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.loss_graph import (
    add_note,
    formula_nodes,
    is_formula_end,
    read_note,
)

TOPIC = "moving-target"
STEPS = 3
"""The first steps; the constants of a formula are noted in the first five."""
LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")
NODES = {
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "Pow": "the square of a difference",
    "Abs": "the size of a difference",
    "Mul": "the square of a difference",
}
PLACE = "regression"
LEAST_FACTOR = 0.5
LEAST_REWARD = 1e-3
MOST_NODES = 20_000
NAMED = 5
DISCOUNTED = r"(?i)[=(].*(\*\s*(self\.|args\.|cfg\.)?\w*(gamma|discount)|(gamma|discount)\w*\s*\*)"


class MovingTargets(Observer):
    """Reads the graph of the loss in the first steps."""

    functions = find_aliases(*LOSSES)
    calls_before = STEPS

    def start(self) -> None:
        self._reported = False

    def function_ended(self, call: TorchCall) -> None:
        if self.script.step >= STEPS:
            return
        sides = (call.argument(0, "input"), call.argument(1, "target"))
        if all(isinstance(side, Tensor) and side.grad_fn is not None for side in sides):
            add_note(call.result, PLACE, self.script.place())

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._reported or self.script.step >= STEPS:
            return
        place = None
        for node in formula_nodes(roots):
            place = read_note(node, PLACE) or place
            for one, other in _sides(node):
                factor = _discount(one)
                target, prediction = (one, other) if factor is not None else (other, one)
                factor = _discount(target) if factor is None else factor
                if factor is not None and self._report(node, target, prediction, factor, place):
                    return

    def _report(
        self, node: Any, target: Any, prediction: Any, factor: float, place: dict[str, Any] | None
    ) -> bool:
        held = {
            id(p)
            for optimizer in self.script.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        of_target = {id(leaf): leaf for leaf in _leaves(target)}
        shared = [
            leaf for leaf in _leaves(prediction) if id(leaf) in of_target and id(leaf) in held
        ]
        if not shared:
            return False
        self._reported = True
        facts: dict[str, Any] = {
            "function": NODES[node_kind(node)],
            "shared": [self.script.name_of(leaf) or "a tensor" for leaf in shared[:NAMED]],
            "shared_count": len(shared),
            "factor": factor,
        }
        line = find_only_line(self.script, DISCOUNTED) or place
        if line is not None:
            facts["place"] = line
        self.evidence.record(TOPIC, facts)
        return True


def _sides(node: Any) -> Iterator[tuple[Any, Any]]:
    """What a regression loss compares, where both have a graph."""
    kind = node_kind(node)
    if kind not in NODES:
        return
    below = next_nodes(node)
    if kind in ("Pow", "Abs", "Mul"):
        if kind == "Mul" and not (len(below) == 2 and below[0] is below[1]):
            return
        difference = below[0] if below else None
        if difference is None or node_kind(difference) not in ("Sub", "Rsub"):
            return
        below = next_nodes(difference)
    if len(below) == 2:
        yield below[0], below[1]


def _discount(side: Any) -> float | None:
    """The factor of a bootstrapped target: reward + factor · value, with 0.5 ≤ factor ≤ 1."""
    rewarded, factor = False, None
    for node in walk_graph([side], most=200, skip=is_formula_end):
        kind, constant = node_kind(node), read_note(node, CONSTANT)
        if constant is None:
            continue
        low, high = constant
        if kind in ("Add", "Sub"):
            rewarded = rewarded or max(abs(low), abs(high)) >= LEAST_REWARD
        elif kind == "Mul" and low >= 0 and LEAST_FACTOR <= high <= 1:
            factor = high if factor is None else min(factor, high)
    return factor if rewarded else None


def _leaves(node: Any) -> list[Tensor]:
    found = (getattr(item, "variable", None) for item in walk_graph([node], most=MOST_NODES))
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


# A target network that is the trained network: known from its names, since its targets are
# detached. Learning without a target network, which has no such name, is common.

_TARGET = re.compile(r"(?i)(^|_)(target|tgt)")
SAME_STEPS = 2
"""Measured steps in which one network must have both names."""


class SharedTargets(Observer):
    """Looks for a network that is called at least twice for a step and has two names."""

    def start(self) -> None:
        self._calls: dict[int, int] = {}
        self._named: tuple[str, str] | None = None
        self._line: dict[str, Any] | None = None
        self._regression = self._reported = False
        self._steps = 0

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._reported or len(self.script.stack) != 1 or not is_measured_step(self.script.step):
            return
        self._calls[id(module)] = count = self._calls.get(id(module), 0) + 1
        if count == 2 and self._named is None:
            self._named = self._two_names(module)
            if self._named is not None:
                target = re.escape(self._named[0])
                assigned = rf"\b{target}\s*=\s*[\w.]+\s*$"
                self._line = find_only_line(self.script, assigned) or self.script.place()

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._named is not None and not self._regression:
            self._regression = any(node_kind(node) in NODES for node in formula_nodes(roots))

    def step_begins(self, optimizer: Optimizer) -> None:
        names, regression = self._named, self._regression
        self._calls, self._named, self._regression = {}, None, False
        if self._reported or names is None or not regression:
            return
        self._steps += 1
        if self._steps >= SAME_STEPS:
            self._reported = True
            facts: dict[str, Any] = {"names": list(names)}
            if self._line is not None:
                facts["place"] = self._line
            self.evidence.record(TOPIC, facts)

    def _two_names(self, module: nn.Module) -> tuple[str, str] | None:
        """The names of a module in one holder, that of a target first."""
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return None
        for frame in self.script.frames():
            for holder in (frame.f_locals, _attributes(frame.f_locals.get("self"))):
                names = [name for name, value in list(holder.items()) if value is module]
                targets = [name for name in names if _TARGET.search(name)]
                others = [name for name in names if name not in targets]
                if targets and others:
                    return targets[0], others[0]
        return None


def _attributes(owner: Any) -> Mapping[str, Any]:
    found = dict(getattr(owner, "__dict__", {}))
    modules = found.get("_modules")
    return found | modules if isinstance(modules, dict) else found
