"""Scalars that look like a loss and that no backward pass starts from.

A component that was added as a number without its graph, or whose sum nothing came of, trains
nothing; nobody notices, because the loss that is left falls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headway.preflight.observer import Evidence
from headway.preflight.observers.loss.value_names import (
    GENERIC_NAMES,
    Scalar,
    choose_names,
    locate_scalar,
)
from headway.preflight.script_context import ScriptContext
from headway.torch_adapters.autograd_graph import walk_graph
from headway.torch_adapters.loss_graph import find_terms
from headway.torch_adapters.op_schema import LOSS_NAMES

TOPIC = "loss-component"
MOST_COMPONENTS = 12
"""Maximum number of components of one loss."""
FEWEST = 3
"""Steps at which a value must be part of the loss to be reported."""
SAME = 0.01
"""How far the ratio of two numbers may vary and still be one weight."""


@dataclass(slots=True)
class UnusedLoss:
    """A scalar that looks like a loss and that no backward pass has begun at."""

    name: str
    first: int
    place: dict[str, Any] | None
    steps: int = 0
    last: float = 0.0
    own: list[str] = field(default_factory=list)
    """Parameters that only it would train."""
    joined: bool = False
    """It was added to what trains, and the sum was not used."""
    forgotten: bool = False
    """It stands beside losses that do train, and nobody looks at it."""
    ratios: list[float] = field(default_factory=list)
    """What the loss holds beyond its parts, over the value of this one."""
    values: list[float] = field(default_factory=list)
    reported: bool = False


class UnusedLosses:
    """What is known of each, from step to step."""

    def __init__(self, script: ScriptContext, evidence: Evidence) -> None:
        self.fed: set[Any] = set()
        """Keys of the scalars that a backward pass did begin at."""
        self.reached: set[int] = set()
        """Parameters that the backward passes of the step have reached, by id."""
        self.rest: float | None = None
        """What the loss holds beyond its parts; None where that is not known."""
        self._script = script
        self._evidence = evidence
        self._idle: dict[Any, UnusedLoss] = {}

    def forget(self) -> None:
        """What was known of the step is void."""
        self.reached = set()
        self.rest = None

    def finish(self) -> None:
        """No step will follow: fewer of them are enough."""
        for key, idle in self._idle.items():
            self._report(key, idle, 2)

    def look_at(self, gone: Sequence[Scalar]) -> None:
        """The scalars of a step that is over."""
        loose = [
            item
            for item in gone
            if item.source and not item.fed and item.key not in self.fed and item.levels
        ]
        if not loose or not self.fed:
            return
        known = {item.node: item for item in gone if item.node is not None}
        joined = self._joined(gone, known)
        beside = {key[0][:2] for key in self.fed if key}
        optimized = {
            id(p)
            for optimizer in self._script.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        }
        fresh: dict[Any, Scalar] = {}
        for item in loose:
            fresh.setdefault(item.key, item)
        for key, item in list(fresh.items())[: 2 * MOST_COMPONENTS]:
            idle = self._idle.get(key)
            if idle is None:
                if len(self._idle) >= 8 * MOST_COMPONENTS:
                    continue
                name = choose_names([[item]])[0]
                idle = self._idle[key] = UnusedLoss(name, self._script.step, locate_scalar(item))
            idle.steps += 1
            if item.node is not None and self.reached:
                own = [leaf for leaf in _leaves(item) if id(leaf) not in self.reached]
                own = [leaf for leaf in own if id(leaf) in optimized]
                idle.own = [self._script.name_of(leaf) or "?" for leaf in own][:20]
                if item.node in joined:
                    idle.joined, idle.place = True, locate_scalar(joined[item.node])
                idle.forgotten = (
                    not item.read
                    and _called_loss(item)
                    and item.levels[0].key[:2] in beside
                    and item.op in LOSS_NAMES
                )
            self._compare(idle, item)
            self._report(key, idle, 8)

    def _joined(self, gone: Sequence[Scalar], known: Mapping[Any, Scalar]) -> dict[Any, Scalar]:
        """Sources that were added to what trains, and the sum that nothing came of."""
        found: dict[Any, Scalar] = {}
        for item in gone:
            if item.fed or item.op not in ("add", "sum") or item.node is None:
                continue
            below = [term.node for term in find_terms(item.node)]
            if any(node in known and known[node].fed for node in below):
                found |= {node: item for node in below if node in known and not known[node].fed}
        return found

    def _compare(self, idle: UnusedLoss, item: Scalar) -> None:
        """Whether the loss holds this value as a number without a graph."""
        value = idle.last = float(item.value)
        if self.rest and value and math.isfinite(value) and len(idle.ratios) < 64:
            idle.ratios.append(self.rest / value)
            idle.values.append(value)

    def _report(self, key: Any, idle: UnusedLoss, enough: int) -> None:
        if idle.reported or key in self.fed:
            return
        weight = _constant_weight(idle)
        if weight is not None:
            kind = "detached"
        elif idle.own or idle.joined or idle.forgotten:
            kind = "discarded"
        else:
            return
        self._evidence.value(f"loss/{idle.name}", idle.last)
        if idle.steps < enough:
            return
        idle.reported = True
        self._evidence.record(
            TOPIC,
            {
                "kind": kind,
                "name": idle.name,
                "steps": idle.steps,
                "first_step": idle.first,
                "place": idle.place,
                "own": idle.own,
                **({} if weight is None else {"weight": weight}),
            },
        )


def _constant_weight(idle: UnusedLoss) -> float | None:
    """The factor by which the value stands in the loss, if it is one and the same."""
    ratios = idle.ratios
    if len(ratios) < FEWEST or len(ratios) < 0.8 * idle.steps:
        return None
    middle = sorted(ratios)[len(ratios) // 2]
    moves = max(idle.values) - min(idle.values) > 10 * SAME * abs(idle.values[0]) / 10
    near = all(abs(item - middle) <= SAME * abs(middle) for item in ratios)
    return middle if moves and near and 1e-6 < abs(middle) < 1e6 else None


def _leaves(item: Scalar) -> list[Tensor]:
    found = []
    for node in walk_graph([item.node], most=20_000):
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
    return found


def _called_loss(item: Scalar) -> bool:
    name = (item.levels[0].name or "").lower()
    return "loss" in name and name not in GENERIC_NAMES
